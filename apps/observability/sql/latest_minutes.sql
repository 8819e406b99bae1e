-- a minute of the whole fleet lies together: one look at the last few, not one look a GPU
SELECT DISTINCT ON (gpu) gpu, time, simulated, ARRAY[{values}]
FROM gpu_minute
WHERE gpu = ANY(%(gpus)s)
  AND time >= %(since)s
ORDER BY gpu, time DESC
