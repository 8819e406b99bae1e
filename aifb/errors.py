"""The one exception of the format and its trust rules: a stable code and a sentence for a person."""

from typing import Literal, get_args

Code = Literal[
    # the file: header, layout, tree
    "bad_magic",
    "bad_version",
    "bad_crc",
    "bad_reserved",
    "bad_flags",
    "bad_chunk_bytes",
    "bad_padding",
    "length_mismatch",
    "truncated",
    "trailing_bytes",
    "misaligned",
    "overlap",
    "gap",
    "out_of_range",
    "bad_layout",
    "root_mismatch",
    "chunk_mismatch",
    # the metadata
    "metadata_too_large",
    "bad_metadata",
    "too_many",
    "bad_name",
    "duplicate_name",
    "unknown_dtype",
    "unknown_op",
    "unknown_step",
    "unknown_field",
    "bad_shape",
    "bad_alias",
    "bad_quantisation",
    "bad_graph",
    "dangling_reference",
    "not_found",
    # signatures and trust
    "bad_envelope",
    "bad_key",
    "bad_signature",
    "unknown_key",
    "bad_document",
    "bad_root_chain",
    "bad_path",
    "wrong_node",
    "wrong_epoch",
    "wrong_artifact",
    "expired",
    "sequence_too_low",
    "sequence_too_far",
    "content_changed",
    "replayed",
    "below_floor",
    # importers
    "not_importable",
]

CODES: frozenset[str] = frozenset(get_args(Code))


class AifbError(Exception):
    """An artifact, a signature or a signed document was refused.

    `code` is stable and meant for programs; `sentence` says what is wrong, where, and what to do about it.
    """

    def __init__(self, code: Code, sentence: str) -> None:
        super().__init__(sentence)
        self.code: Code = code
        self.sentence = sentence

    def __reduce__(self) -> tuple[type["AifbError"], tuple[Code, str]]:
        return type(self), (self.code, self.sentence)
