SELECT (date_part('epoch', time) / 60)::integer, gpu, {value}
FROM gpu_minute
WHERE gpu = ANY(%(gpus)s)
  AND time >= %(since)s
  AND time < %(until)s
  AND {present}
