-- The average of the winning bids of each category.
SELECT category, avg(final) AS final
FROM (
  SELECT a.id, a.category, max(b.price) AS final
  FROM auction AS a JOIN bid AS b ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires
  GROUP BY a.id, a.category
) AS q
GROUP BY category;
