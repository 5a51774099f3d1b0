-- The last bid of each bidder on each auction.
SELECT auction, bidder, price, channel, date_time
FROM (
  SELECT *, row_number() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC, price DESC, channel, url) AS place FROM bid
) AS q
WHERE place <= 1;
