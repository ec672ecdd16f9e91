from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.simulator.workload import Request, TraceError, read_trace
from tandem.simulator.workload.request import unpack
from tandem.simulator.workload.settings import MODES
from tests.simulator.data import DATA, needs_data
from tests.simulator.workload.traces import write_trace


@st.composite
def traces(draw: st.DrawFn) -> list[Request]:
    times = sorted(draw(st.lists(st.integers(0, 10**7), min_size=1, max_size=8)))
    made = []
    for time_ms in times:
        length = draw(st.integers(1, 40))
        bits = draw(st.none() | st.binary(min_size=length, max_size=length))
        acceptance = None if bits is None else bytes(b & 1 for b in bits)
        made.append(
            Request(
                time_ms / 1e3,
                draw(st.integers(1, 9999)),
                length,
                acceptance,
                device=draw(st.none() | st.integers(0, 99)),
                reader_rate=draw(st.sampled_from([0.0, 4.5])),
                mode=draw(st.none() | st.sampled_from(sorted(MODES))),
                max_tokens=draw(st.none() | st.integers(1, 99)),
            )
        )
    return made


@given(trace=traces())
def test_what_is_written_is_read(trace: list[Request], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("trace") / "t.jsonl"
    write_trace(path, trace)
    assert read_trace(path) == trace


def test_acceptance_is_a_byte_a_position() -> None:
    assert unpack("0110") == bytes([0, 1, 1, 0])


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
        (
            '{"prompt_length": 5, "output_length": 2, "arrival_time_ms": 11, "x": 1}',
            r"row 2: no column 'x' \(allowed: acceptance_seq, arrival_time_ms",
        ),
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
        (
            "arrival_s,prompt_tokens,output_tokens\n0,5,5\n1,-4,5\n",
            "row 3: prompt_tokens .*at least 1, not -4",
        ),
        ("arrival_s,prompt_tokens,output_tokens\nnan,5,5\n", "row 2: arrival_s .*not nan"),
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


OURS = '{"arrival_s": 1, "prompt_tokens": 5, "output_tokens": 2, '


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (
            '"mode": "telepathy"}',
            r"mode cannot be 'telepathy' \(allowed: cloud, device, speculative, race, split, sketch\)",
        ),
        ('"max_tokens": 0}', "max_tokens must be a number of at least 1, not 0"),
        ('"max_tokens": 1.5}', "max_tokens must be a whole number, not 1.5"),
        ('"reader_rate": "fast"}', "reader_rate must be a number of at least 0, not fast"),
        ('"device": -1}', "device must be a number of at least 0, not -1"),
        ('"max_token": 4}', r"no column 'max_token' \(allowed: .*max_tokens"),
    ],
)
def test_what_requests_say_of_themselves_is_checked(line: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(OURS + line)
    with pytest.raises(TraceError, match=f"row 1: {complaint}"):
        read_trace(path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "azure.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
            "2023-11-16 18:17:04.0296000,396,109\r\n"
            "2023-11-16 18:17:03.9799600,4808,10\r\n"
            "2023-11-16 18:17:05.0000000,7,0\r\n",
        ),
        (
            "mooncake.jsonl",
            '{"timestamp": 27482, "input_length": 4808, "output_length": 10, "hash_ids": [46, 47]}\n'
            '{"timestamp": 27531.64, "input_length": 396, "output_length": 109, "hash_ids": [46, 52]}\n',
        ),
        (
            "burst.csv",
            "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
            "5,ChatGPT,4808,10,4818,Conversation log\n"
            "5.04964,GPT-4,396,109,505,API log\n"
            "45,ChatGPT,1087,0,1087,Conversation log\n",
        ),
    ],
)
def test_published_traces_are_read_as_they_are(name: str, text: str, tmp_path: Path) -> None:
    """In order, from 0, without requests that failed."""
    path = tmp_path / name
    path.write_bytes(text.encode())
    first, second = read_trace(path)
    assert (first.arrival_s, first.prompt_tokens, first.output_tokens) == (0.0, 4808, 10)
    assert second.arrival_s == pytest.approx(0.04964, abs=1e-6)
    assert (second.prompt_tokens, second.output_tokens) == (396, 109)


def test_a_date_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n")
    with pytest.raises(TraceError, match="row 2: TIMESTAMP must be a date and time, not 'yesterday'"):
        read_trace(path)


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
