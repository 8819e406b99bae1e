-- single buckets of single GPUs: LATERAL, so that each is one look into the index on (gpu, time)
INSERT INTO {target} (time, gpu, samples, simulated, {columns})
SELECT late.bucket, late.gpu, made.*
FROM unnest(%(buckets)s::timestamptz[], %(gpus)s::integer[]) AS late (bucket, gpu)
CROSS JOIN LATERAL (
    SELECT {samples} AS samples, bool_or(simulated), {aggregates}
    FROM {source}
    WHERE gpu = late.gpu
      AND time >= late.bucket
      AND time < late.bucket + %(width)s
) AS made
WHERE made.samples > 0
