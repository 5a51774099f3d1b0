-- The auctions with the most bids in the last ten seconds, every two seconds.
SELECT b.auction, b.num, b.window_start
FROM (
  SELECT auction, window_start, count(*) AS num
  FROM HOP(TABLE bid, DESCRIPTOR(date_time), INTERVAL '2 seconds', INTERVAL '10 seconds')
  GROUP BY auction, window_start
) AS b
JOIN (
  SELECT window_start, max(num) AS most
  FROM (
    SELECT auction, window_start, count(*) AS num
    FROM HOP(TABLE bid, DESCRIPTOR(date_time), INTERVAL '2 seconds', INTERVAL '10 seconds')
    GROUP BY auction, window_start
  ) AS counts
  GROUP BY window_start
) AS m ON b.window_start = m.window_start AND b.num >= m.most;
