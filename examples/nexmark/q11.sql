-- How often each person bids without a pause of ten seconds.
SELECT bidder, window_start, window_end, count(*) AS n
FROM SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(date_time), INTERVAL '10 seconds')
GROUP BY bidder, window_start, window_end;
