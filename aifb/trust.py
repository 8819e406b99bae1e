"""The trust rules in one place: root, artifact manifest, assignment. All pure: bytes, keys and a clock reading go in.

A node walks root → assignment → manifest → leaf table → chunks, and every step is verified before it is parsed.
"""

from aifb.assignment import (
    ASSIGNMENTS_TYPE,
    MAX_LIFETIME,
    MAX_SEQUENCE_JUMP,
    Accepted,
    Deployment,
    Statement,
    accepted,
    bundle_statements,
    check_acceptance,
    content_digest,
    make_bundle,
    make_statement,
    next_sequence,
    open_bundle,
    parse_statement,
    verify_statement,
)
from aifb.documents import format_time
from aifb.manifest import MANIFEST_TYPE, Manifest, make_manifest, parse_manifest, verify_manifest
from aifb.root_chain import (
    ROOT_TYPE,
    Role,
    Root,
    make_root,
    open_pinned_root,
    parse_root,
    root_digest,
    verify_root_chain,
)

__all__ = [
    "ASSIGNMENTS_TYPE",
    "MANIFEST_TYPE",
    "MAX_LIFETIME",
    "MAX_SEQUENCE_JUMP",
    "ROOT_TYPE",
    "Accepted",
    "Deployment",
    "Manifest",
    "Role",
    "Root",
    "Statement",
    "accepted",
    "bundle_statements",
    "check_acceptance",
    "content_digest",
    "format_time",
    "make_bundle",
    "make_manifest",
    "make_root",
    "make_statement",
    "next_sequence",
    "open_bundle",
    "open_pinned_root",
    "parse_manifest",
    "parse_root",
    "parse_statement",
    "root_digest",
    "verify_manifest",
    "verify_root_chain",
    "verify_statement",
]
