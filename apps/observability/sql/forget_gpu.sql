DELETE FROM {target}
USING unnest(%(buckets)s::timestamptz[], %(gpus)s::integer[]) AS late (bucket, gpu)
WHERE {target}.gpu = late.gpu
  AND {target}.time = late.bucket
