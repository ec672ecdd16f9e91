"""Preparations of downloads. That whole files come out as they should, checksums tell whoever fetches them."""

from __future__ import annotations

import gzip
import json

import pytest

from tandem.benchmarks.data import prepare
from tandem.benchmarks.data.prepare import Prepare


def lines(*given: object) -> bytes:
    return "".join(f"{json.dumps(each)}\n" for each in given).encode()


PROFILE = (
    b",time_stats.emb.min,time_stats.emb.median,n_embd,block_size\n0,1,0.20000000000000001,64,16\n"
    b"1,2,0.20000000000000001,64,32\n"
)
TRACE = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:00:02.5000000,3,4\r\n"
    b"2023-11-16 18:00:00.2500000,1,2\r\n2023-11-16 18:30:00.0000000,5,6"
)
REQUEST = {"request_id": "r", "arrival_ms": 2.5, "prompt_tokens": 3, "target_tokens": 4}
SERVED = {
    "request_id": "b",
    "input_toks": 5,
    "output_toks": 3,
    "arrival_time": 100.5,
    "queued_ts": 1.0,
    "scheduled_ts": 1.25,
    "first_token_ts": 1.5,
    "last_token_ts": 2.5,
}
CALL = {
    "error_code": None,
    "ttft_s": 0.12345678,
    "inter_token_latency_s": 0,
    "end_to_end_latency_s": 2,
    "number_input_tokens": 550,
    "number_output_tokens": 150,
}
SAMPLE = {"model": "m", "ttr": 0.1234567, "ttft": None, "tps": 3, "num_tokens": 20, "total_time": 1.5}


@pytest.mark.parametrize(
    ("function", "downloads", "made"),
    [
        (prepare.as_it_is, {"x": b"\r\n\xff"}, b"\r\n\xff"),
        (prepare.unpacked, {"x": gzip.compress(b"text")}, b"text"),
        (
            prepare.medians,
            {"x": PROFILE},
            b"emb_ms,n_embd\n0.20000000000000001,64\n0.20000000000000001,64\n",
        ),
        (prepare.attention_medians, {"x": PROFILE}, b"emb_ms,n_embd\n0.20000000000000001,64\n"),
        (
            prepare.chosen_inputs,
            {"x": b"layer,input\n" + b"".join(b"a,%d\n" % n for n in (64, 65, 80, 513, 528, 576, 4096))},
            b"layer,input\na,64\na,80\na,576\n",
        ),
        (
            prepare.arrivals,
            {"x": TRACE},
            b"timestamp_utc,arrival_s,prompt_tokens,output_tokens\n2023-11-16 18:00:00.2500000,0.0,1,2\n"
            b"2023-11-16 18:00:02.5000000,2.25,3,4\n2023-11-16 18:30:00.0000000,1799.75,5,6\n",
        ),
        (
            prepare.peak,
            {"x": TRACE},
            b"timestamp_utc,arrival_s,prompt_tokens,output_tokens\n2023-11-16 18:00:00.2500000,0.0,1,2\n"
            b"2023-11-16 18:00:02.5000000,2.25,3,4\n",
        ),
        (
            prepare.dsd_trace,
            {"x": lines(REQUEST)},
            b"request_id,arrival_ms,prompt_tokens,target_tokens\nr,2.5,3,4\n",
        ),
        (
            prepare.dsd_client_trace,
            {"x": lines(REQUEST | {"metadata": {"client_id": "c"}})},
            b"request_id,arrival_ms,prompt_tokens,target_tokens,client\nr,2.5,3,4,c\n",
        ),
        (
            prepare.lengths,
            {"a/train.jsonl": lines({"prompt": "one two"}), "a/test.jsonl": lines({"prompt": "x" * 44})},
            b"file,index,chars,words,est_tokens\ntrain,0,7,2,2\ntest,0,44,1,10\n",
        ),
        (
            prepare.measured_run,
            {"x": lines(SERVED, SERVED | {"request_id": "a", "arrival_time": 100.0})},
            b"request_id,prompt_tokens,output_tokens,arrival_s,queue_wait_s,ttft_s,e2e_s,tpot_s\n"
            b"b,5,3,0.5,0.25,0.5,1.5,0.5\na,5,3,0.0,0.25,0.5,1.5,0.5\n",
        ),
        (
            prepare.wifi,
            {"traces/wifi_cafe_231115-151422.txt": b"0.0\t21.7\n1.0\t7.97\n"},
            b"location,trace,t_s,mbps\ncafe,231115-151422,0.0,21.7\ncafe,231115-151422,1.0,7.97\n",
        ),
        (
            prepare.services,
            {"raw/groq_70b.json": json.dumps([CALL, CALL | {"error_code": 429}]).encode()},
            b"provider,model,index,ttft_s,inter_token_latency_s,e2e_s,prompt_tokens,output_tokens,error_code\n"
            b"groq,llama-2-70b-chat,0,0.123457,0.0,2.0,550,150,\n"
            b"groq,llama-2-70b-chat,1,0.123457,0.0,2.0,550,150,429.0\n",
        ),
        (
            prepare.samples,
            {
                name: json.dumps([{"time": time, "region": "sea", "results": [SAMPLE]}]).encode()
                for name, time in (("new", "2"), ("old", "1"), ("older", "1"))
            },
            b"time_utc,region,model,ttr_s,ttft_s,tokens_per_s,num_tokens,total_time_s,error\n"
            b"1,sea,m,0.12346,,3.0,20,1.5,\n2,sea,m,0.12346,,3.0,20,1.5,\n",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_made_of_downloads(function: Prepare, downloads: dict[str, bytes], made: bytes) -> None:
    assert function(list(downloads.items())) == made
