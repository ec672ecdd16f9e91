from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.simulator.workload import Request, TraceError, read_trace, write_trace
from cluster.simulator.workload.request import pack, unpack
from tests.cluster.simulator.data import DATA, needs_data


@st.composite
def traces(draw: st.DrawFn) -> list[Request]:
    times = sorted(draw(st.lists(st.integers(0, 10**7), min_size=1, max_size=8)))
    made = []
    for time_ms in times:
        length = draw(st.integers(1, 40))
        bits = draw(st.none() | st.binary(min_size=length, max_size=length))
        acceptance = None if bits is None else bytes(b & 1 for b in bits)
        drafter = draw(st.none() | st.integers(0, 99))
        made.append(Request(time_ms / 1e3, draw(st.integers(1, 9999)), length, acceptance, drafter))
    return made


@given(trace=traces())
def test_what_is_written_is_read(trace: list[Request], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("trace") / "t.jsonl"
    write_trace(path, trace)
    back = read_trace(path)
    assert [r.arrival_s for r in back] == pytest.approx([r.arrival_s for r in trace])
    assert [(r.prompt_tokens, r.output_tokens, r.acceptance, r.drafter) for r in back] == [
        (r.prompt_tokens, r.output_tokens, r.acceptance, r.drafter) for r in trace
    ]


@given(st.binary(max_size=50))
def test_acceptance_packs_and_unpacks(data: bytes) -> None:
    bits = bytes(b & 1 for b in data)
    assert unpack(pack(bits)) == bits


GOOD = '{"prompt_length": 5, "output_length": 2, "arrival_time_ms": 10, "acceptance_seq": "01"}\n'


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "row 2: "),
        ('{"prompt_length": 5, "output_length": 2}', "row 2: .*arrival_time_ms"),
        (
            '{"prompt_length": 0, "output_length": 2, "arrival_time_ms": 11}',
            "row 2: prompt_length .*at least 1",
        ),
        ('{"prompt_length": 5, "output_length": -2, "arrival_time_ms": 11}', "row 2: output_length .*not -2"),
        ('{"prompt_length": 5, "output_length": 2, "arrival_time_ms": -1}', "row 2: arrival_time_ms"),
        ('{"prompt_length": 5, "output_length": 2, "arrival_time_ms": 9}', "row 2: arrives at .*sort"),
        (GOOD.replace("01", "012"), "row 2: acceptance_seq may hold 0 and 1 only"),
        (GOOD.replace("01", "0"), "row 2: acceptance_seq has 1 entries, output_length is 2"),
        ('{"prompt_length": 5, "output_length": 2, "arrival_time_ms": 11, "x": 1}', "row 2: .*unknown field"),
    ],
)
def test_a_bad_line_is_named_with_its_file(line: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(GOOD + line + "\n")
    with pytest.raises(TraceError, match=rf"trace\.jsonl, {complaint}"):
        read_trace(path)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a,b\n1,2\n", "row 1: needs the columns arrival_s, prompt_tokens, output_tokens; or"),
        ("arrival_s,prompt_tokens,output_tokens\n0,5,x\n", "row 2: "),
        ("arrival_s,prompt_tokens,output_tokens\n0,5,5\n1,,5\n", "row 3: prompt_tokens is missing"),
        ("arrival_s,prompt_tokens,output_tokens\n0,5,5\n1,-4,5\n", "row 3: prompt_length .*not -4"),
        ("arrival_s,prompt_tokens,output_tokens\nnan,5,5\n", "row 2: arrival_time_ms"),
        ("arrival_s,prompt_tokens,output_tokens\n5,5,5\n4,5,5\n", "row 3: arrives at 4 s, before"),
    ],
)
def test_a_bad_row_is_named_with_its_file(text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=rf"trace\.csv, {complaint}"):
        read_trace(path)


def test_a_file_that_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="there is no such file"):
        read_trace(tmp_path / "none.csv")
    with pytest.raises(TraceError, match=r"a \.jsonl or a \.csv"):
        read_trace(tmp_path / "trace.txt")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(TraceError, match="empty"):
        read_trace(tmp_path / "empty.jsonl")


@needs_data
@pytest.mark.parametrize(
    ("file", "count", "prompt"),
    [
        ("dsd_traces/gsm8k_master400_trace.csv", 400, 73),
        ("dsd_traces/cnndm_trace.csv", 2000, 889),
        ("azure_llm_2023/conv_peak20min.csv", 8267, 1243),
        ("vllm_measured_runs/RTX4090_Llama-3.1-8B_requests.csv", 300, 858),
    ],
)
def test_the_public_traces_are_read(file: str, count: int, prompt: int) -> None:
    assert DATA is not None
    trace = read_trace(DATA / file)
    assert len(trace) == count
    assert sum(r.prompt_tokens for r in trace) / count == pytest.approx(prompt, abs=1)
