-- New people who open an auction in the same ten seconds.
SELECT p.id, p.name, p.window_start
FROM (
  SELECT DISTINCT id, name, window_start
  FROM TUMBLE(TABLE person, DESCRIPTOR(date_time), INTERVAL '10 seconds')
) AS p
JOIN (
  SELECT DISTINCT seller, window_start
  FROM TUMBLE(TABLE auction, DESCRIPTOR(date_time), INTERVAL '10 seconds')
) AS a ON p.id = a.seller AND p.window_start = a.window_start;
