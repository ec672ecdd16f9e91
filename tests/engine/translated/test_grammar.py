"""A grammar is over bytes: an engine of another vocabulary answers and drafts by the same one."""

from __future__ import annotations

from pathlib import Path

from tandem.engine.translated.engine import Translated
from tests.engine.torch.engines import Engines
from tests.engine.translated.test_contract import HERE, PROMPT, THERE
from tests.engine_contract import LANGUAGE, begins, drain, ruled, session


async def test_it_answers_and_drafts_by_a_grammar(tmp_path: Path) -> None:
    engines = Engines(tmp_path)
    engine = Translated(engines.start(text=THERE), HERE, THERE)
    texts = set()
    for seed in (None, *range(8)):
        async with session(engine, PROMPT, ruled(seed)) as s:
            ids, finish = await drain(s)
            assert finish == "stop"
            texts.add(HERE.shown_bytes(ids))
        for cut in (0, 1, len(ids) - 1):
            async with session(engine, PROMPT, ruled(seed)) as s:
                drafts = (await s.draft(0, ids[:cut], 4)).ids
                assert drafts
                assert begins(HERE.shown_bytes([*ids[:cut], *drafts]))
    assert texts <= LANGUAGE
    assert len(texts) > 1
    await engines.close()
