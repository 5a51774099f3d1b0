-- The demo: a file of flights and three views, the last one on the first.
CREATE TABLE flights (
    time_hour timestamptz, carrier text, flight int, tailnum text, origin text, dest text,
    dep_delay int, arr_delay int, distance int
) WITH (connector = 'file', path = '{path}', format = 'csv');

CREATE MATERIALIZED VIEW by_carrier AS
SELECT carrier, count(*) AS flights, avg(arr_delay) AS avg_delay, count(DISTINCT dest) AS destinations
FROM flights GROUP BY carrier;

CREATE MATERIALIZED VIEW by_route AS
SELECT origin, dest, count(*) AS flights, avg(dep_delay) AS avg_delay, max(arr_delay) AS worst,
       count(*) FILTER (WHERE arr_delay IS NULL) AS missing, min(time_hour) AS first, max(distance) AS miles
FROM flights GROUP BY origin, dest;

CREATE MATERIALIZED VIEW total AS
SELECT count(*) AS carriers, sum(flights) AS flights, max(destinations) AS most_destinations
FROM by_carrier;
