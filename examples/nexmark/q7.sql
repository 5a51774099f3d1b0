-- The highest bids of every ten seconds.
SELECT b.auction, b.price, b.bidder, b.date_time, b.extra
FROM TUMBLE(TABLE bid, DESCRIPTOR(date_time), INTERVAL '10 seconds') AS b
JOIN (
  SELECT window_start, max(price) AS most
  FROM TUMBLE(TABLE bid, DESCRIPTOR(date_time), INTERVAL '10 seconds')
  GROUP BY window_start
) AS m ON b.window_start = m.window_start AND b.price = m.most;
