"""Django's settings. This module alone reads the environment; `.env.example` documents every variable."""

from __future__ import annotations

import secrets
from pathlib import Path
from urllib.parse import unquote, urlparse

from csp.constants import NONCE
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

BASE_DIR = Path(__file__).resolve().parent.parent


class Env(BaseSettings):
    """Everything that the environment may set, with its default."""

    model_config = SettingsConfigDict(env_file=None, extra="ignore")

    database_url: str = Field("postgresql://farrier@127.0.0.1:5432/farrier", alias="DATABASE_URL")
    owner_database_url: str = Field("", alias="FARRIER_OWNER_DATABASE_URL")
    redis_url: str = Field("redis://127.0.0.1:6379/0", alias="REDIS_URL")
    home: Path = Field(BASE_DIR / "var", alias="FARRIER_HOME")
    secret_key: str = Field("", alias="FARRIER_SECRET_KEY")
    debug: bool = Field(False, alias="FARRIER_DEBUG")
    allowed_hosts: str = Field("127.0.0.1,localhost,web", alias="FARRIER_ALLOWED_HOSTS")
    origin: str = Field("http://127.0.0.1:8700", alias="FARRIER_ORIGIN")
    director_key: Path | None = Field(None, alias="FARRIER_DIRECTOR_KEY")
    audit_key: Path | None = Field(None, alias="FARRIER_AUDIT_KEY")
    nodes: int = Field(3, alias="FARRIER_NODES", ge=0, le=9)  # node agents that `make up` starts
    gateway_port_base: int = Field(8710, alias="FARRIER_GATEWAY_PORT_BASE", ge=1, le=65_000)  # + number of the node
    poll_interval_s: float = Field(30.0, alias="FARRIER_POLL_INTERVAL_S", gt=0)
    tick_s: float = Field(5.0, alias="FARRIER_TICK_S", gt=0)
    db_pool_max: int = Field(10, alias="FARRIER_DB_POOL_MAX", ge=2)
    rollout_lease_s: float = Field(30.0, alias="FARRIER_ROLLOUT_LEASE_S", ge=5)
    assignment_life_s: float = Field(86_400.0, alias="FARRIER_ASSIGNMENT_LIFE_S", gt=0, le=86_400)
    credential_life_s: float = Field(86_400.0, alias="FARRIER_CREDENTIAL_LIFE_S", gt=0)
    approval_life_s: float = Field(14_400.0, alias="FARRIER_APPROVAL_LIFE_S", gt=0)
    alert_for_s: float = Field(300.0, alias="FARRIER_ALERT_FOR_S", ge=0)
    alert_group_wait_s: float = Field(30.0, alias="FARRIER_ALERT_GROUP_WAIT_S", ge=0)
    alert_group_interval_s: float = Field(300.0, alias="FARRIER_ALERT_GROUP_INTERVAL_S", ge=0)
    alert_repeat_s: float = Field(14_400.0, alias="FARRIER_ALERT_REPEAT_S", gt=0)
    alert_heartbeat_s: float = Field(300.0, alias="FARRIER_ALERT_HEARTBEAT_S", gt=0)
    metrics_token: str = Field("", alias="FARRIER_METRICS_TOKEN")
    raw_retention_h: int = Field(48, alias="FARRIER_RAW_RETENTION_H", ge=1)
    minute_retention_d: int = Field(30, alias="FARRIER_MINUTE_RETENTION_D", ge=1)
    hour_retention_d: int = Field(400, alias="FARRIER_HOUR_RETENTION_D", ge=1)
    max_artifact_bytes: int = Field(64 << 30, alias="FARRIER_MAX_ARTIFACT_BYTES", ge=1)
    team_artifact_bytes: int = Field(1 << 40, alias="FARRIER_TEAM_ARTIFACT_BYTES", ge=1)
    webhook_networks: str = Field("", alias="FARRIER_WEBHOOK_NETWORKS")
    failpoints: str = Field("", alias="FARRIER_FAILPOINTS")
    log_level: str = Field("INFO", alias="FARRIER_LOG_LEVEL")


ENV = Env()


def _database(url: str) -> dict[str, object]:
    parts = urlparse(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.lstrip("/"),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
        "CONN_MAX_AGE": 0,
        "OPTIONS": {"pool": {"min_size": 1, "max_size": ENV.db_pool_max, "timeout": 10}},
    }


DATABASES = {"default": _database(ENV.database_url)}
if ENV.owner_database_url:
    # Migrations, the audit sealer and partition upkeep; the same database under the role that owns the tables.
    DATABASES["owner"] = _database(ENV.owner_database_url) | {
        "OPTIONS": {},
        "TEST": {"MIRROR": "default"},
    }

# Without a set key every start makes its own, which ends all sessions: fine for tests, `make up` sets one.
SECRET_KEY = ENV.secret_key or secrets.token_urlsafe(50)
DEBUG = ENV.debug
ALLOWED_HOSTS = [host for host in ENV.allowed_hosts.split(",") if host]
CSRF_TRUSTED_ORIGINS = [ENV.origin]
_secure = ENV.origin.startswith("https://")
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = _secure
SESSION_COOKIE_HTTPONLY = CSRF_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "template_partials",
    "django_htmx",
    "csp",
    "pgtrigger",
    "rest_framework",
    "knox",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_filters",
    "apps.lib",
    "apps.access",
    "apps.audit",
    "apps.models",
    "apps.fleet",
    "apps.observability",
    "apps.rollouts",
    "controlplane",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "apps.lib.problems.DatabaseAway",
    "apps.lib.problems.BadValue",
]

ROOT_URLCONF = "controlplane.urls"
WSGI_APPLICATION = "controlplane.wsgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_USER_MODEL = "access.User"
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "home"
LOGOUT_REDIRECT_URL = "login"

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "csp.context_processors.nonce",
                "controlplane.home.shell",
            ],
        },
    }
]

LANGUAGE_CODE = "en-gb"
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = False

STATIC_URL = "static/"
STATIC_ROOT = ENV.home / "static"
STATICFILES_DIRS = [BASE_DIR / "static"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
WHITENOISE_USE_FINDERS = True

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": ["'self'"],
        "script-src": ["'self'", NONCE],
        "style-src": ["'self'", NONCE],
        "img-src": ["'self'", "data:"],
        "connect-src": ["'self'"],
        "object-src": ["'none'"],
        "base-uri": ["'none'"],
        "frame-ancestors": ["'none'"],
        "form-action": ["'self'"],
    }
}

# Counts wrong passwords: with Django's 300 entries, failures on other names would soon push a count out.
CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "OPTIONS": {"MAX_ENTRIES": 20_000}},
}

DATA_UPLOAD_MAX_MEMORY_SIZE = 8 << 20  # a publication lists every source file by digest; artifacts are streamed

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "apps.access.authentication.ApiTokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["apps.access.permissions.HasScope"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["apps.lib.parsers.BoundedJSONParser"],
    "DEFAULT_PAGINATION_CLASS": "apps.lib.pages.ApiPagination",
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "DEFAULT_FILTER_BACKENDS": ["django_filters.rest_framework.DjangoFilterBackend"],
    "EXCEPTION_HANDLER": "apps.lib.problems.handle",
    "PAGE_SIZE": 50,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Farrier",
    "DESCRIPTION": "Fits AI models to GPU fleets: lineage, signed artifacts, staged rollouts, fleet health.",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "ENUM_NAME_OVERRIDES": {
        "AlertSeverity": "apps.observability.alert_models.Severity",
        "AlertState": "apps.observability.alert_models.AlertState",
        "NodePhase": "apps.fleet.models.NodePhase",
        "RolloutPhase": "apps.rollouts.models.Phase",
        "StageState": "apps.rollouts.models.StageState",
        "VersionState": "apps.models.models.VersionState",
    },
    "SERVE_PERMISSIONS": ["rest_framework.permissions.AllowAny"],
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
}
# knox's own token table is swapped for ours, but its migrations would create it all the same
MIGRATION_MODULES = {"knox": None}
KNOX_TOKEN_MODEL = "access.ApiToken"  # noqa: S105 a model's name
REST_KNOX = {"TOKEN_TTL": None, "AUTH_HEADER_PREFIX": "Token", "TOKEN_PREFIX": "farrier_"}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(levelname)s %(name)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": ENV.log_level},
    "loggers": {
        # it writes every address in full at INFO, and a webhook's may carry a secret
        "httpx2": {"level": "WARNING"},
        # one line for every tick of every task would bury what matters
        **{name: {"level": "WARNING"} for name in ("celery.beat", "celery.worker.strategy", "celery.app.trace")},
    },
}

FARRIER = ENV
