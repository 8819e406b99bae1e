"""Shapes of observability's endpoints."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers


class FeedbackIn(serializers.Serializer[Any]):
    request_id = serializers.CharField(max_length=64, help_text="As the answer's `id` and `x-request-id` gave it.")
    # a Serializer is itself a Field, whose own label the stubs have in mind
    label = serializers.CharField(max_length=120, help_text="What was true.")  # type: ignore[assignment]


class FeedbackOut(serializers.Serializer[Any]):
    stored = serializers.IntegerField()


class LoggedRequestOut(serializers.Serializer[Any]):
    """One row of the inference log; times in µs, entropy in bits."""

    time = serializers.DateTimeField()
    request_id = serializers.CharField()
    model = serializers.CharField()
    version = serializers.IntegerField()
    node_id = serializers.UUIDField()
    digest = serializers.CharField()
    deployment_id = serializers.UUIDField()
    status = serializers.IntegerField()
    error_code = serializers.CharField()
    batch_size = serializers.IntegerField()
    queue_us = serializers.IntegerField()
    preprocess_us = serializers.IntegerField()
    compute_us = serializers.IntegerField()
    postprocess_us = serializers.IntegerField()
    total_us = serializers.IntegerField()
    entropy = serializers.FloatField(allow_null=True)
    score = serializers.FloatField(allow_null=True)
    predicted_label = serializers.CharField()
