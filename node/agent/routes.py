"""The gateway's configuration: pure functions from routes to Envoy's JSON (its own API, v3).

The listener is fixed; routes and clusters are files that Envoy watches. It sees renames, not writes in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.agent.planner import Key, ModelRoute

Json = dict[str, Any]

_TYPE = "type.googleapis.com/"
_HCM = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
COMPARATOR = "comparator"
USER_HEADER = "x-user-id"
MODEL_HEADER = "x-model-id"
NODE_HEADER = "x-farrier-node"
REPLAY_HEADER = "x-farrier-replay"
REQUEST_TIMEOUT_S = 30
MAX_BODY_BYTES = 4 << 20  # what an engine takes; a request is kept that long, so that it can be tried again
MAX_CONNECTIONS = 4_096
# An engine that was killed is back within seconds; its requests wait that long, in ever longer steps.
RETRIES = 24
RETRY_BASE_S, RETRY_MAX_S = 0.025, 1.0


@dataclass(frozen=True)
class Gateway:
    """Where one node's gateway listens and where it finds its files."""

    node: str
    host: str
    port: int
    admin_socket: Path
    routes_file: Path
    clusters_file: Path


def cluster_name(key: Key) -> str:
    """The name under which the gateway knows an engine; also the prefix of its statistics."""
    return f"{key.model}-{key.digest[:16]}"


def bootstrap(gateway: Gateway) -> Json:
    """What Envoy is started with."""
    return {
        "node": {"id": gateway.node, "cluster": "farrier"},
        "admin": {"address": {"pipe": {"path": str(gateway.admin_socket), "mode": 0o600}}},
        "dynamic_resources": {"cds_config": _file(gateway.clusters_file)},
        "static_resources": {"listeners": [_listener(gateway)]},
        "overload_manager": {
            "resource_monitors": [
                {
                    "name": "envoy.resource_monitors.global_downstream_max_connections",
                    "typed_config": {
                        "@type": f"{_TYPE}envoy.extensions.resource_monitors.downstream_connections.v3"
                        ".DownstreamConnectionsConfig",
                        "max_active_downstream_connections": MAX_CONNECTIONS,
                    },
                }
            ]
        },
    }


def _file(path: Path) -> Json:
    return {"path_config_source": {"path": str(path)}, "resource_api_version": "V3"}


def _listener(gateway: Gateway) -> Json:
    manager = {
        "@type": _TYPE + _HCM,
        "stat_prefix": "gateway",
        "rds": {"route_config_name": "models", "config_source": _file(gateway.routes_file)},
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{_TYPE}envoy.extensions.filters.http.router.v3.Router"},
            }
        ],
        "generate_request_id": True,
        "always_set_request_id_in_response": True,
        "request_id_extension": {
            "typed_config": {
                "@type": f"{_TYPE}envoy.extensions.request_id.uuid.v3.UuidRequestIdConfig",
                "pack_trace_reason": False,
            }
        },
        "use_remote_address": True,
        "server_name": "farrier-gateway",
        "stream_idle_timeout": "60s",
        "request_headers_timeout": "10s",
        "common_http_protocol_options": {"idle_timeout": "300s"},
        "local_reply_config": _local_replies(),
    }
    return {
        "name": "gateway",
        "address": {"socket_address": {"address": gateway.host, "port_value": gateway.port}},
        # two gateways on one port must be an error, not a silent split of the requests
        "enable_reuse_port": False,
        "per_connection_buffer_limit_bytes": MAX_BODY_BYTES + (1 << 16),
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }


def _local_replies() -> Json:
    """Refusals that the gateway makes itself, in the form in which engines refuse."""
    by_gateway: Json = {"response_flag_filter": {}}  # any flag: neither an engine's answer nor a fixed one of ours
    value = {"default_value": 503, "runtime_key": "gateway.unavailable"}
    is_503 = {"status_code_filter": {"comparison": {"op": "EQ", "value": value}}}
    sentence = "No engine on this node answered; it is being restarted, so try again in a few seconds."
    unavailable = {"error": sentence, "code": "engine_unavailable", "detail": "%LOCAL_REPLY_BODY%"}
    other = {"error": "%LOCAL_REPLY_BODY%", "code": "gateway_%RESPONSE_CODE%"}
    return {
        "mappers": [
            {
                "filter": {"and_filter": {"filters": [by_gateway, is_503]}},
                "body_format_override": {"json_format": unavailable},
            },
            {"filter": by_gateway, "body_format_override": {"json_format": other}},
        ]
    }


def clusters(engines: Mapping[Key, Path], comparator: Path, version: str) -> Json:
    """The cluster file: one cluster for each engine's socket, and the comparator's."""
    named = {cluster_name(key): path for key, path in engines.items()}
    resources = [_cluster(name, path) for name, path in sorted(named.items())]
    return {"version_info": version, "resources": [*resources, _cluster(COMPARATOR, comparator)]}


def _cluster(name: str, socket: Path) -> Json:
    limits = {"max_connections": 1_024, "max_pending_requests": 8_192, "max_requests": 8_192, "max_retries": 8_192}
    return {
        "@type": f"{_TYPE}envoy.config.cluster.v3.Cluster",
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "per_connection_buffer_limit_bytes": MAX_BODY_BYTES + (1 << 16),
        "circuit_breakers": {"thresholds": [limits]},
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": {"pipe": {"path": str(socket)}}}}]}],
        },
    }


def route_table(routes: Iterable[ModelRoute], *, node: str, version: str) -> Json:
    """The route file: where the requests of each model go, and a sentence for those of any other."""
    table = list(routes)
    by_path = [entry for route in table for entry in _by_path(route)]
    by_header = [_by_header(route) for route in table]
    host = {
        "name": "models",
        "domains": ["*"],
        "routes": [*_own(table), *by_path, *by_header, _nobody()],
    }
    config = {
        "@type": f"{_TYPE}envoy.config.route.v3.RouteConfiguration",
        "name": "models",
        "virtual_hosts": [host],
        # by this header the comparator asks engines not to log: nobody outside may
        "request_headers_to_remove": [REPLAY_HEADER],
        "response_headers_to_add": [
            {"header": {"key": NODE_HEADER, "value": node}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
        ],
    }
    return {"version_info": version, "resources": [config]}


def _by_path(route: ModelRoute) -> list[Json]:
    base = f"/v2/models/{route.model}"
    infer = {"match": {"path": f"{base}/infer"}, "route": {**_action(route), **_mirror(route)}}
    return [
        infer,
        {"match": {"path": base}, "route": _action(route)},
        {"match": {"prefix": f"{base}/"}, "route": _action(route)},
    ]


def _by_header(route: ModelRoute) -> Json:
    wanted = {"name": MODEL_HEADER, "string_match": {"exact": route.model}}
    return {"match": {"prefix": "/", "headers": [wanted]}, "route": _action(route)}


def _action(route: ModelRoute) -> Json:
    shares = [{"name": cluster_name(share.key), "weight": share.weight} for share in route.shares]
    return {
        # the hash of the user decides, so each stays with one version; without a user it is drawn by lot
        "weighted_clusters": {"clusters": shares, "use_hash_policy": True},
        "hash_policy": [{"header": {"header_name": USER_HEADER}}],
        "timeout": f"{REQUEST_TIMEOUT_S}s",
        "retry_policy": {
            # inference changes nothing, so a request whose engine died may be asked again; a refusal by an engine
            # (too busy, too late) is an answer and is not: that would pile load on load
            "retry_on": "connect-failure,refused-stream,reset",
            "num_retries": RETRIES,
            "retry_back_off": {"base_interval": f"{RETRY_BASE_S}s", "max_interval": f"{RETRY_MAX_S}s"},
        },
    }


def _mirror(route: ModelRoute) -> Json:
    if route.mirror is None:
        return {}
    share = {"default_value": {"numerator": route.mirror.percent, "denominator": "HUNDRED"}}
    return {"request_mirror_policies": [{"cluster": COMPARATOR, "runtime_fraction": share}]}


def _own(table: list[ModelRoute]) -> list[Json]:
    """What the gateway says about itself."""
    ready = (200, '{"ready":true}') if table else (503, '{"ready":false}')
    return [
        _answer({"path": "/v2/health/live"}, 200, '{"live":true}'),
        _answer({"path": "/v2/health/ready"}, *ready),
    ]


def _nobody() -> Json:
    sentence = "No engine on this node serves this model; see its rollouts, or ask another node."
    return _answer({"prefix": "/"}, 503, f'{{"error":"{sentence}","code":"model_not_served"}}')


def _answer(match: Json, status: int, body: str) -> Json:
    return {
        "match": match,
        "direct_response": {"status": status, "body": {"inline_string": body}},
        "response_headers_to_add": [
            {
                "header": {"key": "content-type", "value": "application/json"},
                "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
            }
        ],
    }
