"""A service with a scripted policy, and the parts of a deployed one: a random Llama with an adapter, and synthetic mails."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from environment.email_db import MailDatabase, build_database
from environment.sources.synthetic import synthetic_company
from serving.app import ServiceApp
from serving.bodies import Reply
from tests.fakes.policy import MailPolicy
from tests.serving.scripted_service import scripted_app
from tests.serving.service_client import KEYS, OWNER_KEY, URL
from training.backends.base_model import resolve_base_model
from training.backends.model_sources.wheels import CHATML_HERMES
from training.checkpoint import Checkpoint


def build_base_model(folder: Path) -> Path:
    """A randomly initialised Llama of a few thousand weights that writes bytes."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    marks = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocabulary = {token: i for i, token in enumerate(marks + sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", additional_special_tokens=marks
    )
    fast.chat_template = CHATML_HERMES.read_text()
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=8192,
        bos_token_id=vocabulary["<|im_start|>"],
        eos_token_id=vocabulary["<|im_end|>"],
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def build_checkpoint(base: Path, folder: Path, **settings: object) -> Checkpoint:
    """An untrained adapter for the model in `base`, as a stored checkpoint; `settings` become its training configuration."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    adapter = folder.with_name(folder.name + "-adapter")
    lora = LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), lora).save_pretrained(adapter)
    files = resolve_base_model(str(base), folder.parent)
    described = Checkpoint.from_adapter(
        adapter,
        base_model=files.id,
        base_model_checksum=files.checksum,
        base_model_source=str(base),
        name="tiny",
        step=3,
        config={"max_turns": 2, "max_tokens": 16, **settings},
        created=datetime.now(UTC),
    )
    return described.save(folder)


def build_mails(path: Path) -> MailDatabase:
    """The mails of a synthetic company with two inboxes."""
    company = synthetic_company(seed=3, train_inboxes=1, test_inboxes=1, mails_per_inbox=60, questions_per_inbox=4)
    build_database(company.emails(), path)
    return MailDatabase(path)


@pytest.fixture(scope="session")
def tiny_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `base`, the checkpoint `tiny` trained on it, and `mails.sqlite`."""
    folder = tmp_path_factory.mktemp("tiny")
    build_checkpoint(build_base_model(folder / "base"), folder / "tiny")
    build_mails(folder / "mails.sqlite").close()
    return folder


@pytest.fixture(scope="session")
def inbox(tiny_store: Path) -> str:
    """An address that has mail in `tiny_store`."""
    return MailDatabase(tiny_store / "mails.sqlite").inboxes()[0]


@pytest.fixture(scope="module")
def policy() -> Iterator[MailPolicy]:
    with MailPolicy() as server:
        yield server


@pytest.fixture(scope="module")
def records() -> list[Reply]:
    return []


@pytest.fixture(scope="module")
def app(policy: MailPolicy, records: list[Reply], tmp_path_factory: pytest.TempPathFactory) -> ServiceApp:
    return scripted_app(policy, tmp_path_factory.mktemp("service"), records=records, max_waiting=1, max_wait=300)


@pytest.fixture(scope="module")
def client(app: ServiceApp) -> Iterator[TestClient]:
    with TestClient(app.asgi, base_url=URL, raise_server_exceptions=False) as http:
        yield http


@pytest.fixture(scope="module")
def closed(policy: MailPolicy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A service with keys."""
    app = scripted_app(policy, tmp_path_factory.mktemp("closed"), key=OWNER_KEY, keys=KEYS)
    with TestClient(app.asgi, base_url=URL) as http:
        yield http


@pytest.fixture
def calm(policy: MailPolicy) -> Iterator[None]:
    """Undo what a test did to the policy."""
    policy.calm()
    yield
    policy.calm()
    policy.up = True
