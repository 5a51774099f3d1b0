-- The ten highest bids of each auction.
SELECT auction, bidder, price, date_time, place
FROM (
  SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC, date_time, bidder) AS place FROM bid
) AS q
WHERE place <= 10;
