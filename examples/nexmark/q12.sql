-- How often each person bids in every ten seconds.
SELECT bidder, window_start, window_end, count(*) AS n
FROM TUMBLE(TABLE bid, DESCRIPTOR(date_time), INTERVAL '10 seconds')
GROUP BY bidder, window_start, window_end;
