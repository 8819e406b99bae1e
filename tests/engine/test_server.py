"""The serving socket of real engines: right answers, each client its own rows, and a code for every bad request."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from aifb.importers import digit_images, minilm
from node.wire.client import Answer
from tests.engine.support import Artifacts, Engine, infer, pixels, texts, wait_until


def _output(answer: Answer, name: str) -> Any:
    assert answer.status == 200, answer.body
    return next(output for output in answer.json()["outputs"] if output["name"] == name)


def _embedding(answer: Answer) -> np.ndarray:
    output = _output(answer, "embedding")
    assert output["datatype"] == "FP32"
    return np.array(output["data"], np.float32).reshape(output["shape"])


class Reference:
    """Plain torch on one text at a time, tokenised as the model's own files say."""

    def __init__(self, module: minilm.SentenceEmbedder) -> None:
        self._module = module
        self._tokenizer = Tokenizer.from_file(str(minilm.model_folder() / minilm.TOKENIZER))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(minilm.MAX_TOKENS)

    def __call__(self, text: str) -> np.ndarray:
        ids = torch.tensor([self._tokenizer.encode(text).ids])
        with torch.inference_mode():
            return np.asarray(self._module(ids, torch.ones_like(ids))["embedding"][0])


@pytest.fixture(scope="module")
def reference(artifacts: Artifacts) -> Reference:
    return Reference(artifacts.embedder)


SENTENCE = "the licence grants each reader a perpetual right to copy modify and share this work under its own terms"
WORDS = SENTENCE.split()


def _text(number: int) -> str:
    """Texts of very different lengths, no two alike."""
    length = 1 + number * 7 % 90
    return f"{number} " + " ".join(WORDS[(number + i * 5) % len(WORDS)] for i in range(length))


def test_an_embedding_equals_plain_torch_and_names_its_version(
    embedder: Engine, reference: Reference, artifacts: Artifacts
) -> None:
    packed = artifacts.minilm["v1"]
    answer = embedder.infer(texts("A signed artifact reaches every node."), {"x-request-id": "abc-1"})
    assert np.abs(_embedding(answer)[0] - reference("A signed artifact reaches every node.")).max() < 1e-4
    document = answer.json()
    assert (document["model_name"], document["model_version"], document["id"]) == ("minilm-embedder", "1", "abc-1")
    assert document["parameters"] == {"digest": packed.written.digest, "lineage": packed.lineage.identity}
    assert answer.headers["x-farrier-model"] == "minilm-embedder"
    assert answer.headers["x-farrier-version"] == "1"
    assert answer.headers["x-farrier-digest"] == packed.written.digest
    assert answer.headers["x-farrier-lineage"] == packed.lineage.identity


def test_every_client_gets_its_own_rows_whatever_shared_its_batch(embedder: Engine, reference: Reference) -> None:
    clients, each = 8, 6
    barrier = threading.Barrier(clients)

    def run(client_number: int) -> list[tuple[str, np.ndarray]]:
        got = []
        with embedder.client() as client:
            barrier.wait()
            for index in range(each):
                mine = [_text(client_number * 100 + index * 3 + row) for row in range(1 + (client_number + index) % 3)]
                rows = _embedding(infer(client, "minilm-embedder", texts(*mine)))
                assert len(rows) == len(mine)
                got += zip(mine, rows, strict=True)
        return got

    with ThreadPoolExecutor(clients) as pool:
        pairs = [pair for part in pool.map(run, range(clients)) for pair in part]
    for text, row in pairs:
        assert np.abs(row - reference(text)).max() < 1e-4, text
    shared = [row for row in embedder.rows() if row.batch_size > row.input_items]
    assert shared, "the load was meant to make requests share batches"
    assert max(row.batch_size for row in embedder.rows()) <= 16


def test_a_request_larger_than_a_batch_comes_back_whole_and_in_order(embedder: Engine, reference: Reference) -> None:
    mine = [_text(number) for number in range(37)]
    rows = _embedding(embedder.infer(texts(*mine)))
    assert rows.shape == (37, 384)
    for index in (0, 15, 16, 17, 31, 32, 36):
        assert np.abs(rows[index] - reference(mine[index])).max() < 1e-4


def test_a_text_that_is_too_long_is_cut_and_the_answer_says_so(embedder: Engine, reference: Reference) -> None:
    long = " ".join(WORDS * 200)  # long enough to be tokenised beside the event loop
    answer = embedder.infer(texts(long))
    assert answer.json()["parameters"]["truncated"] is True
    assert np.abs(_embedding(answer)[0] - reference(long)).max() < 1e-4
    assert "truncated" not in embedder.infer(texts("short")).json()["parameters"]


def test_texts_of_any_script_and_of_no_length_are_served(embedder: Engine, reference: Reference) -> None:
    mine = ["", "Schrödinger", "東京は晴れ", "🐴🐴", "a\x00b"]
    rows = _embedding(embedder.infer(texts(*mine)))
    for text, row in zip(mine, rows, strict=True):
        assert np.abs(row - reference(text)).max() < 1e-4


def test_digits_are_recognised_with_probabilities_and_logged_entropy(classifier: Engine, artifacts: Artifacts) -> None:
    held_out, labels = digit_images.held_out()
    answer = classifier.infer(pixels(held_out[:40].tolist()))
    probabilities = _output(answer, "probabilities")
    assert probabilities["shape"] == [40, 10]
    rows = np.array(probabilities["data"]).reshape(40, 10)
    assert np.abs(rows.sum(axis=1) - 1).max() < 1e-6
    with torch.inference_mode():
        wanted = artifacts.classifier(torch.from_numpy(held_out[:40]))["logits"].softmax(-1)
    assert np.abs(rows - wanted.numpy()).max() < 1e-4
    told = _output(answer, "label")["data"]
    assert told == [str(digit) for digit in rows.argmax(axis=1)]
    assert sum(int(label) == truth for label, truth in zip(told, labels[:40], strict=True)) >= 36

    one = classifier.infer(pixels(held_out[:1].tolist()), {"x-request-id": "entropy-1"})
    p = np.array(_output(one, "probabilities")["data"])
    row = wait_until(
        lambda: next((row for row in classifier.rows() if row.request_id == "entropy-1"), None), "the request's row"
    )
    assert row.predicted_label == _output(one, "label")["data"][0]
    assert row.score == pytest.approx(p.max(), abs=1e-5)
    assert row.entropy == pytest.approx(-(p * np.log2(np.maximum(p, 1e-30))).sum(), abs=1e-4)


def test_only_the_wanted_outputs_come_back(classifier: Engine) -> None:
    answer = classifier.infer(pixels([[0.0] * 64]), outputs=[{"name": "label"}])
    assert [output["name"] for output in answer.json()["outputs"]] == ["label"]


def test_nested_data_is_taken_as_the_protocol_allows(classifier: Engine) -> None:
    flat = classifier.infer(pixels([[1.0] * 64, [2.0] * 64]))
    body = [{"name": "pixels", "datatype": "FP32", "shape": [2, 64], "data": [[1] * 64, [2] * 64]}]
    assert _output(classifier.infer(body), "probabilities") == _output(flat, "probabilities")


def _pixels(**changes: Any) -> list[dict[str, Any]]:
    return [{"name": "pixels", "datatype": "FP32", "shape": [1, 64], "data": [0.0] * 64, **changes}]


BAD_REQUESTS = {
    "not json": (b"{", 400, "bad_json"),
    "not utf-8": (b'{"inputs": "\xff"}', 400, "bad_json"),
    "no object": (b"[]", 400, "bad_json"),
    "empty": (b"", 400, "bad_json"),
    "too deep": (b"[" * 100_000, 400, "bad_json"),
    "no inputs": ({}, 400, "missing_input"),
    "inputs no list": ({"inputs": {"name": "pixels"}}, 400, "missing_input"),
    "no input": ({"inputs": []}, 400, "missing_input"),
    "unknown input": ({"inputs": _pixels(name="text")}, 400, "unknown_input"),
    "input twice": ({"inputs": _pixels() + _pixels()}, 400, "duplicate_input"),
    "wrong datatype": ({"inputs": _pixels(datatype="FP64")}, 400, "wrong_datatype"),
    "no datatype": ({"inputs": _pixels(datatype=None)}, 400, "wrong_datatype"),
    "wrong width": ({"inputs": _pixels(shape=[1, 63], data=[0.0] * 63)}, 400, "wrong_shape"),
    "wrong rank": ({"inputs": _pixels(shape=[64])}, 400, "wrong_shape"),
    "no rows": ({"inputs": _pixels(shape=[0, 64], data=[])}, 400, "wrong_shape"),
    "negative size": ({"inputs": _pixels(shape=[-1, 64])}, 400, "wrong_shape"),
    "size no number": ({"inputs": _pixels(shape=[True, 64])}, 400, "wrong_shape"),
    "too little data": ({"inputs": _pixels(data=[0.0] * 63)}, 400, "wrong_shape"),
    "too much data": ({"inputs": _pixels(data=[0.0] * 65)}, 400, "wrong_shape"),
    "mixed nesting": ({"inputs": _pixels(data=[[0.0] * 63, 0.0])}, 400, "wrong_shape"),
    "no data": ({"inputs": _pixels(data=None)}, 400, "wrong_shape"),
    "data as text": ({"inputs": _pixels(data=["0"] * 64)}, 400, "wrong_datatype"),
    "data as bool": ({"inputs": _pixels(data=[True] * 64)}, 400, "wrong_datatype"),
    "data with null": ({"inputs": _pixels(data=[0.0] * 63 + [None])}, 400, "wrong_datatype"),
    "nan": (json.dumps({"inputs": _pixels(data=[float("nan")] * 64)}).encode(), 400, "bad_json"),
    "infinity": (json.dumps({"inputs": _pixels(data=[float("inf")] * 64)}).encode(), 400, "bad_json"),
    "infinite when parsed": (
        json.dumps({"inputs": _pixels(data=[0.5] + [0] * 63)}).replace("0.5", "1e999").encode(),
        400,
        "out_of_range",
    ),
    "infinite in float32": ({"inputs": _pixels(data=[1e39] * 64)}, 400, "out_of_range"),
    "huge integer": ({"inputs": _pixels(data=[10**400] + [0] * 63)}, 400, "out_of_range"),
    "too many items": ({"inputs": _pixels(shape=[129, 64], data=[0.0] * 129 * 64)}, 413, "too_many_items"),
    "a size beyond all memory": ({"inputs": _pixels(shape=[2**62, 64])}, 413, "too_many_items"),
    "id too long": ({"id": "x" * 129, "inputs": _pixels()}, 400, "bad_id"),
    "id half a pair": (b'{"id": "\\ud800", "inputs": []}', 400, "bad_id"),
    "unknown output": ({"inputs": _pixels(), "outputs": [{"name": "logits"}]}, 400, "unknown_output"),
    "outputs no list": ({"inputs": _pixels(), "outputs": "label"}, 400, "bad_outputs"),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_bad_requests_are_refused_with_a_sentence_and_a_code(classifier: Engine, name: str) -> None:
    body, status, code = BAD_REQUESTS[name]
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with classifier.client() as client:
        answer = client.request("POST", "/v2/models/digit-classifier/infer", raw)
        assert (answer.status, answer.json()["code"]) == (status, code)
        assert answer.json()["error"].endswith(".")
        assert infer(client, "digit-classifier", _pixels()).status == 200


@pytest.mark.parametrize(
    ("data", "code"),
    [([1], "not_text"), ([None], "not_text"), ([{"a": "b"}], "not_text"), ([["a", "b"]], "wrong_shape")],
)
def test_texts_that_are_none_are_refused(embedder: Engine, data: list[Any], code: str) -> None:
    answer = embedder.infer([{"name": "text", "datatype": "BYTES", "shape": [1], "data": data}])
    assert (answer.status, answer.json()["code"]) == (400, code)


def test_half_a_surrogate_pair_is_no_text(embedder: Engine) -> None:
    raw = b'{"inputs":[{"name":"text","datatype":"BYTES","shape":[1],"data":["\\ud800"]}]}'
    with embedder.client() as client:
        answer = client.request("POST", "/v2/models/minilm-embedder/infer", raw)
    assert (answer.status, answer.json()["code"]) == (400, "not_text")


def test_a_body_beyond_the_limit_is_refused_before_it_is_read(classifier: Engine) -> None:
    with classifier.client() as client:
        answer = client.request("POST", "/v2/models/digit-classifier/infer", b" " * (5 << 20))
    assert (answer.status, answer.json()["code"]) == (413, "body_too_large")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("POST", "/v2/models/other/infer", 404, "unknown_model"),
        ("POST", "/v2/models/digit-classifier/versions/2/infer", 404, "unknown_model"),
        ("GET", "/v2/models/other", 404, "unknown_model"),
        ("GET", "/v2/models/other/ready", 404, "unknown_model"),
        ("GET", "/v2/models/digit-classifier/infer", 405, "wrong_method"),
        ("POST", "/v2", 405, "wrong_method"),
        ("DELETE", "/v2/health/live", 405, "wrong_method"),
        ("GET", "/", 404, "not_found"),
        ("GET", "/v2/models/a/b/c", 404, "not_found"),
    ],
)
def test_other_paths_and_methods_have_their_codes(
    classifier: Engine, method: str, path: str, status: int, code: str
) -> None:
    with classifier.client() as client:
        answer = client.request(method, path)
    assert (answer.status, answer.json()["code"]) == (status, code)
    assert answer.headers["x-farrier-model"] == "digit-classifier"


def test_the_protocols_reads_answer(classifier: Engine) -> None:
    with classifier.client() as client:
        assert client.request("GET", "/v2").json()["name"] == "farrier-engine"
        assert client.request("GET", "/v2/health/live").json() == {"live": True}
        assert client.request("GET", "/v2/health/ready").status == 200
        assert client.request("GET", "/v2/models/digit-classifier/ready").json()["ready"] is True
        description = client.request("GET", "/v2/models/digit-classifier/versions/3").json()
    assert description["versions"] == ["3"]
    assert description["inputs"] == [{"name": "pixels", "datatype": "FP32", "shape": [-1, 64]}]
    assert [output["name"] for output in description["outputs"]] == ["probabilities", "label"]


def test_every_request_is_a_row_good_or_bad(classifier: Engine) -> None:
    headers = {"x-request-id": "row-good", "x-user-id": "user-7", "x-session-id": "session-9"}
    classifier.infer(_pixels(), headers)
    classifier.infer(_pixels(shape=[64]), {"x-request-id": "row-bad"})
    with classifier.client() as client:
        client.request("POST", "/v2/models/other/infer", b"{}", {"x-request-id": "row-other"})

    def found() -> dict[str, Any] | None:
        rows = {row.request_id: row for row in classifier.rows()}
        return rows if {"row-good", "row-bad", "row-other"} <= rows.keys() else None

    rows = wait_until(found, "the rows of the three requests")
    good = rows["row-good"]
    assert (good.status, good.error_code, good.model, good.version) == (200, "", "digit-classifier", 3)
    assert (good.input_items, good.batch_size, good.session_id) == (1, 1, "session-9")
    assert len(good.user_key) == 16
    assert len(good.input_sha256) == 32
    assert good.deployment
    assert good.digest.hex() == classifier.health()["digest"]
    assert good.total_us >= good.queue_us + good.compute_us
    assert (rows["row-bad"].status, rows["row-bad"].error_code) == (400, "wrong_shape")
    assert rows["row-bad"].entropy != rows["row-bad"].entropy  # NaN
    assert (rows["row-other"].status, rows["row-other"].error_code) == (404, "unknown_model")


def test_an_inputs_hash_does_not_depend_on_how_its_json_was_written(classifier: Engine) -> None:
    classifier.infer(_pixels(data=[1.0] * 64), {"x-request-id": "hash-1"})
    classifier.infer(_pixels(data=[[1] * 64]), {"x-request-id": "hash-2"})
    classifier.infer(_pixels(data=[2.0] * 64), {"x-request-id": "hash-3"})

    def found() -> dict[str, bytes] | None:
        hashes = {row.request_id: row.input_sha256 for row in classifier.rows() if row.request_id.startswith("hash-")}
        return hashes if len(hashes) == 3 else None

    hashes = wait_until(found, "the rows of the three requests")
    assert hashes["hash-1"] == hashes["hash-2"] != hashes["hash-3"]


def test_a_replay_is_answered_but_not_logged(classifier: Engine) -> None:
    answer = classifier.infer(_pixels(), {"x-request-id": "replayed", "x-farrier-replay": "1"})
    assert answer.status == 200
    assert int(answer.headers["x-farrier-queue-us"]) >= 0
    classifier.infer(_pixels(), {"x-request-id": "after-the-replay"})
    wait_until(lambda: "after-the-replay" in {row.request_id for row in classifier.rows()}, "the later request's row")
    assert "replayed" not in {row.request_id for row in classifier.rows()}
