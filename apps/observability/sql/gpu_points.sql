SELECT gpu, date_part('epoch', bucket), {mean}, {low}, {high}
FROM (
{layers}) AS layer
GROUP BY gpu, bucket
ORDER BY gpu, bucket
