"""The forward of the root: how it is found, what is marked, and what nobody must notice."""

import copy
import cProfile
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from inspect import signature
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tests.unit.tapes import Tape, recording_marker
from trainspan.names import Phase
from trainspan.record import untraced
from trainspan.record.hooks import dataloader, forward
from trainspan.record.hooks.root_call import SLOT, RootCall
from trainspan.record.marker import Marker
from trainspan.record.patches import Patches
from trainspan.recording.layout import UNTRAINED
from trainspan.watch import ImportWatch

STEPS_OF_A_SEARCH = 2
FORWARD = ["enter forward", "resume other"]
VALIDATION = ["enter validation", "resume other"]


class Watched(NamedTuple):
    """A search that has begun, and the tape."""

    search: forward.RootSearch
    tape: Tape
    patches: Patches
    marker: Marker
    known: nn.Module

    def end_search(self) -> None:
        """Let the steps end that it takes, each with a forward: without any, the next one would begin."""
        for _ in range(STEPS_OF_A_SEARCH):
            self.known(torch.ones(2))
            self.search.step_ended()

    def untrained(self) -> list[bool]:
        """Of each validation, whether no optimizer is known to train the model."""
        marks = [mark for mark in self.tape.slots() if mark is not None and mark.kind == "enter"]
        return [mark.operand == UNTRAINED for mark in marks if mark.phase is Phase.VALIDATION]


@pytest.fixture
def watched() -> Iterator[Watched]:
    """Torch with the hook in it."""
    marker, tape = recording_marker()
    patches = Patches()
    search = forward.install(marker, patches)
    dataloader.install(recording_marker()[0], patches, [search.fetched])  # its marks are on a tape of their own
    search.begin()
    yield Watched(search, tape, patches, marker, nn.Linear(2, 1))
    patches.undo()


class Nested(nn.Module):
    """A root around another module; remembers what the class's slot held while it ran."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        self.slots: list[object] = []

    def forward(self, inputs: Tensor) -> Tensor:
        self.slots.append(nn.Module._compiled_call_impl)
        output: Tensor = self.inner(inputs)
        return output


class Failing(nn.Module):
    """A root that cannot answer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, inputs: Tensor) -> Tensor:
        raise ArithmeticError(inputs)


def test_root_is_marked_and_what_is_inside_is_not(watched: Watched) -> None:
    """A model has hundreds of modules; one of them is the forward."""
    model = Nested()

    model(torch.ones(1, 2))
    watched.search.step_ended()
    model(torch.ones(1, 2))

    assert watched.tape.written() == FORWARD * 2


def test_module_without_parameters_is_no_root(watched: Watched) -> None:
    """A loss is called like a model, and it is not the model."""
    nn.MSELoss()(torch.ones(1), torch.ones(1))

    assert watched.tape.written() == []


def test_parameters_of_another_kind_are_not_asked_for(watched: Watched) -> None:
    """A model's own `parameters` may want arguments, cost much, or draw random numbers."""

    class Grouped(Nested):
        def parameters(self, group: str) -> list[nn.Parameter]:
            raise AssertionError(group)

        def named_parameters(self, group: str) -> list[tuple[str, nn.Parameter]]:
            raise AssertionError(group)

    Grouped()(torch.ones(1, 2))

    assert watched.tape.written() == FORWARD


def test_modules_that_are_in_several_or_in_their_own_are_looked_at_once(watched: Watched) -> None:
    """A head may keep the model that it belongs to; of levels that hold the one below twice, ways double with each."""
    tree: nn.Module = nn.Identity()
    for _ in range(64):
        tree = nn.Sequential(tree, tree)
    model = Nested()
    model.uncalled = tree
    model.inner[0].owner = model

    for _ in range(STEPS_OF_A_SEARCH + 1):
        model(torch.ones(1, 2))
        watched.search.step_ended()

    assert watched.tape.written() == FORWARD * (STEPS_OF_A_SEARCH + 1)


def test_model_that_cannot_be_looked_at_trains_unmarked(watched: Watched, capsys: pytest.CaptureFixture[str]) -> None:
    """What a class does when it is asked for its modules is not known; the forward has been made by then."""

    class Closed(nn.Linear):
        """Shows its modules only until it has been called."""

        def forward(self, inputs: Tensor) -> Tensor:
            output = super().forward(inputs)
            del self._modules
            return output

    model = Closed(2, 1)

    outputs = []
    for _ in range(2):
        model.__dict__["_modules"] = {}
        outputs.append(model(torch.ones(2)))

    assert [len(output) for output in outputs] == [1, 1]
    assert watched.tape.written() == FORWARD * 2
    assert capsys.readouterr().err.count("trainspan: ") == 1


def test_class_is_as_ever_while_a_root_runs_and_after_the_search(watched: Watched) -> None:
    """A compiler that traces the model looks at the class, and guards on what it sees."""
    call = vars(nn.Module)["__call__"]
    model = Nested()

    model(torch.ones(1, 2))
    filled = nn.Module._compiled_call_impl
    watched.end_search()

    assert model.slots == [None]
    assert filled is not None
    assert nn.Module._compiled_call_impl is None
    assert vars(nn.Module)["__call__"] is call is nn.Module._wrapped_call_impl


def test_failure_of_the_first_forward_reaches_the_user_and_the_search_goes_on(watched: Watched) -> None:
    """The first batch is the one that does not fit into the memory."""
    model = Nested()

    with pytest.raises(ArithmeticError):
        Failing()(torch.ones(1))
    model(torch.ones(1, 2))

    assert watched.tape.written() == ["enter forward", "abort other", *FORWARD]


def test_failure_of_a_marked_root_reaches_the_user(watched: Watched) -> None:
    """The same when it is known already."""
    model = Failing()
    with pytest.raises(ArithmeticError):
        model(torch.ones(1))
    watched.search.step_ended()

    with pytest.raises(ArithmeticError):
        model(torch.ones(1))

    assert watched.tape.written() == ["enter forward", "abort other"] * 2


@pytest.mark.parametrize("known", [False, True])
def test_validation_is_a_root_without_gradients_in_eval_mode(watched: Watched, *, known: bool) -> None:
    """In training mode it is a checkpointed forward. Whose weights an optimizer has is told from a teacher."""
    model, teacher, frozen = nn.Linear(2, 1), nn.Linear(2, 1), nn.Linear(2, 1).requires_grad_(False)
    optimizer = torch.optim.SGD([*model.parameters(), *frozen.parameters()])
    watched.search.made(optimizer)
    if known:
        with torch.no_grad():
            for module in (model, teacher.train(), frozen.train()):
                module(torch.ones(2))
        watched.end_search()
    before = len(watched.tape.written())

    with torch.no_grad():
        model(torch.ones(2))
        for module in (model.eval(), teacher.eval(), frozen.eval()):
            module(torch.ones(2))
    model(torch.ones(2))

    assert watched.tape.written()[before:] == [*FORWARD, *VALIDATION * 3, *FORWARD]
    assert watched.untrained() == [False, True, True]


def test_model_that_is_called_before_its_optimizer_is_made_is_known_as_trained_then(watched: Watched) -> None:
    """What was loaded is often evaluated first."""
    model = nn.Linear(2, 1).eval()
    optimizer = torch.optim.SGD(model.parameters())

    with torch.no_grad():
        model(torch.ones(2))
        watched.search.made(optimizer)
        watched.end_search()
        model(torch.ones(2))

    assert watched.untrained() == [True, False]


def test_models_under_training_are_those_that_an_optimizer_has(watched: Watched) -> None:
    """A teacher is the larger one, and not what the run is about."""
    student, teacher = nn.Linear(2, 1), nn.Linear(2, 1)
    optimizer = torch.optim.SGD(student.parameters())
    with torch.no_grad():
        for model in (student, teacher):
            model(torch.ones(2))
    before = watched.search.roots()

    watched.search.made(optimizer)
    watched.search.step_ended()
    watched.search.step_ended()

    assert before == [student, teacher]
    assert watched.search.roots() == [student]


def test_model_that_keeps_gradients_is_under_training(watched: Watched) -> None:
    """Some frameworks give their optimizers copies of its weights."""
    model = nn.Linear(2, 1)

    model(torch.ones(2))
    model.eval()
    with torch.no_grad():
        model(torch.ones(2))

    assert watched.untrained() == [False]
    assert watched.search.roots() == [model]


def test_model_that_is_first_called_after_another_ones_step_is_found(watched: Watched) -> None:
    """Of an ensemble, or an actor and its critic, the first optimizer's step ends the first step of training."""
    first, second = nn.Linear(2, 1), nn.Linear(2, 1)

    for _ in range(5):
        first(torch.ones(2))
        watched.search.step_ended()
        second(torch.ones(2))

    assert watched.tape.written() == FORWARD * 10


def test_model_that_comes_later_is_found_after_a_step_without_forward(watched: Watched) -> None:
    """A model may be wrapped or compiled after some steps: what was found is then called no more."""
    first, second = nn.Linear(2, 1), nn.Linear(2, 1)
    for _ in range(STEPS_OF_A_SEARCH):
        first(torch.ones(2))
        watched.search.step_ended()

    for _ in range(3):
        second(torch.ones(2))
        watched.search.step_ended()

    # Of the first, and of the second from its second step on.
    assert watched.tape.written() == FORWARD * (STEPS_OF_A_SEARCH + 2)


def test_new_optimizer_and_new_loader_announce_another_model(watched: Watched) -> None:
    """A second training in the same process, or the average of the weights that is evaluated after each epoch."""
    trained, averaged, unannounced = nn.Linear(2, 1), nn.Linear(2, 1), nn.Linear(2, 1)
    loader = DataLoader([torch.ones(2)])
    signs: dict[nn.Module, Callable[[], object]] = {
        trained: lambda: watched.search.made(torch.optim.SGD(trained.parameters())),
        averaged: lambda: [next(iter(loader)) for _ in range(2)],
        unannounced: lambda: next(iter(loader)),
    }

    found = []
    for model, sign in signs.items():
        watched.end_search()
        before = len(watched.tape.written())
        sign()
        model(torch.ones(2))
        found.append(len(watched.tape.written()) - before)

    assert found == [2, 2, 0]


def test_loader_that_was_looked_into_before_training_announces_another_model(watched: Watched) -> None:
    """Composer looks at a batch to see its size; when it evaluates it calls the model in the one that is trained."""
    evaluated, loader = nn.Linear(2, 1), DataLoader([torch.ones(2)])
    next(iter(loader))
    watched.end_search()
    before = len(watched.tape.written())

    for batch in loader:
        evaluated(batch)

    assert len(watched.tape.written()) - before == 2


def test_loader_that_keeps_its_iterator_announces_another_model_with_its_first_batch(watched: Watched) -> None:
    """That of Ultralytics, and of timm where it is asked for: made for good, some before training begins."""
    early = iter(DataLoader([torch.ones(2)] * 2))
    late = DataLoader([torch.ones(2)] * 2)
    found = []

    for batches in (early, late._get_iterator()):
        evaluated = nn.Linear(2, 1)
        watched.end_search()
        before = len(watched.tape.written())
        for _ in range(2):
            evaluated(next(batches))
        found.append(len(watched.tape.written()) - before)

    assert found == [4, 4]


@pytest.mark.parametrize("kind", [iter, zip, lambda batches: (batch for batch in batches)])
def test_loader_with_iterators_of_its_own_is_left_as_it_is(watched: Watched, kind: Callable[[Any], Any]) -> None:
    """Some cannot be referred to weakly, and none of them tells of its batches; the script must not hear of that."""

    class Own(DataLoader[Any]):
        def _get_iterator(self) -> Any:
            return kind([torch.ones(2)])

    evaluated = nn.Linear(2, 1)
    watched.end_search()
    before = len(watched.tape.written())

    batches = list(Own([0]))
    evaluated(torch.ones(2))

    assert len(batches) == 1
    assert len(watched.tape.written()) - before == 2


def test_loader_announces_once_however_often_it_is_iterated(watched: Watched) -> None:
    """Each epoch has an iterator of its own, or begins the same one anew; each search costs two steps."""
    workers: dict[str, Any] = {"num_workers": 1, "persistent_workers": True}
    searches = []

    for loader in (DataLoader([torch.ones(2)]), DataLoader([torch.ones(2)], **workers)):
        for _ in range(3):
            watched.end_search()
            list(loader)
            searches.append(nn.Module._compiled_call_impl is not None)

    assert searches == [True, False, False] * 2


def test_nothing_is_sought_within_a_phase_by_another_thread_or_for_ever(watched: Watched) -> None:
    """A framework's validation is one phase, whose inner modules must not cost; each search changes a class."""
    watched.end_search()
    searches = []

    def seek() -> None:
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))])
        watched.search.made(optimizer)
        searches.append(nn.Module._compiled_call_impl is not None)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(seek).result()
    outer = watched.marker.enter(Phase.VALIDATION)
    seek()
    watched.marker.resume(outer)
    for _ in range(200):
        seek()
        watched.end_search()

    assert searches == [False] * 2 + [True] * 100 + [False] * 100


def test_search_in_which_no_step_ends_is_bounded(watched: Watched) -> None:
    """Under a launcher a job may evolve its weights, or only evaluate: with new models in each round, and no step."""
    kept = nn.Linear(2, 1)
    kept(torch.ones(2))
    searching = []

    for _ in range(1100):
        nn.Linear(2, 1)(torch.ones(2))
        searching.append(nn.Module._compiled_call_impl is not None)

    assert searching == [True] * 998 + [False] * 102
    assert watched.search.roots() == [kept]
    assert len(watched.search._marked) == 1


def test_optimizer_of_another_make_is_no_failure(watched: Watched) -> None:
    """The user's own kind may keep its parameters where it likes."""
    watched.search.made(nn.Linear(2, 1))

    model = nn.Linear(2, 1)
    model(torch.ones(2))

    assert watched.tape.written() == FORWARD
    assert watched.search.roots() == [model]


def test_search_for_what_cannot_be_found_is_given_up(watched: Watched) -> None:
    """A step that is compiled whole shows no forward; a job must not pay for the search for ever."""
    searches = 0

    watched.end_search()
    for _ in range(2000):
        watched.search.step_ended()
        searches += nn.Module._compiled_call_impl is not None

    assert searches == 8 * STEPS_OF_A_SEARCH
    assert nn.Module._compiled_call_impl is None


def test_copies_and_pickles_know_nothing_of_it(watched: Watched) -> None:
    """An average of the weights is a deep copy: it must run its own; a checkpoint must not need trainspan."""
    model = nn.Linear(2, 1)
    model(torch.ones(2))
    watched.search.step_ended()

    average = copy.deepcopy(model)
    pickled = pickle.dumps(model)

    assert isinstance(model.__dict__[SLOT], RootCall)
    assert SLOT not in average.__dict__
    assert b"trainspan" not in pickled


def test_pickling_of_its_own_finds_nothing_in_the_slot(watched: Watched) -> None:
    """A class may pickle and copy whatever is in its `__dict__`."""
    model = OwnState(2, 1)
    model(torch.ones(2))
    watched.search.step_ended()

    pickled = pickle.dumps(model)
    copies: list[Any] = [copy.deepcopy(model), pickle.loads(pickled)]  # noqa: S301 - written a line above

    assert [twin.__dict__[SLOT] for twin in copies] == [None, None]
    assert b"trainspan" not in pickled.replace(OwnState.__module__.encode(), b"")


class OwnState(nn.Linear):
    """A root whose pickling is not torch's."""

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)


@pytest.mark.parametrize("original", ["lives", "is compiled", "has lost its slot", "is gone"])
def test_copy_of_all_that_a_module_has_calls_itself(watched: Watched, original: str) -> None:
    """A common `__copy__` takes over the `__dict__`, the slot included: it must not run the original's forward."""
    model = Scaled()
    model(torch.ones(2))
    watched.end_search()
    twin = copy.copy(model)
    twin.scale = 10.0
    before = len(watched.tape.written())
    if original == "is compiled":
        model.compile(backend="eager")
    if original == "has lost its slot":
        model._compiled_call_impl = None
    models = [model, twin]
    if original == "is gone":
        del models[0], model

    answers = [float(module(torch.ones(2)).detach()) for module in models]
    with torch.no_grad():
        twin.eval()(torch.ones(2))

    assert answers == [1.0, 10.0][-len(answers) :]
    assert watched.tape.written()[before:] == FORWARD * (1 + (original in ("lives", "is compiled"))) + VALIDATION


def test_copy_is_traced_as_itself(watched: Watched) -> None:
    """A compiler looks at the copy's `__dict__` too, and an export calls it as it is."""
    model = Scaled()
    model(torch.ones(2))
    watched.end_search()
    twin = copy.copy(model)
    twin.scale = 10.0
    import_module(untraced.COMPILER_MODULE)
    untraced.install(ImportWatch())

    compiled = torch.compile(twin, backend="eager")(torch.ones(2))
    within = torch.compile(lambda inputs: twin(inputs) + 1, backend="eager")(torch.ones(2))
    exported = torch.export.export(twin, (torch.ones(2),), strict=False).module()(torch.ones(2))

    assert [float(answer.detach()) for answer in (compiled, within, exported)] == [10.0, 11.0, 10.0]


class Scaled(nn.Module):
    """A root that copies itself by its `__dict__`."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.scale = 1.0

    def forward(self, inputs: Tensor) -> Tensor:
        return (self.weight * inputs).mean() * self.scale

    def __copy__(self) -> "Scaled":
        twin = Scaled.__new__(Scaled)
        twin.__dict__.update(self.__dict__)
        return twin


def test_only_a_copied_mark_asks_the_frame_who_is_called(watched: Watched) -> None:
    """It takes twice as long, and a model that nobody copies must not pay for it."""
    model = Scaled()
    model(torch.ones(2))
    watched.end_search()

    alone = times_asked(lambda: model(torch.ones(2)))
    twin = copy.copy(model)

    assert (alone, times_asked(lambda: twin(torch.ones(2)))) == (0, 1)


def times_asked(call: Callable[[], object]) -> int:
    """How often the frame was asked. A profiler in Python would hold references to what is called."""
    with cProfile.Profile() as profile:
        call()
    return sum(entry.callcount for entry in profile.getstats() if entry.code is RootCall._callee.__code__)


def test_replica_does_not_call_the_original(watched: Watched) -> None:
    """DataParallel copies a module's `__dict__` to every device, the slot included."""
    model = nn.Linear(2, 1)
    model(torch.ones(2))
    watched.search.step_ended()

    replica = model._replicate_for_data_parallel()

    assert replica.__dict__[SLOT] is None


def test_undoing_leaves_no_trace(watched: Watched) -> None:
    """Torch, the class, and every module are as they were."""
    model = nn.Linear(2, 1)
    before = dict(model.__dict__)
    model(torch.ones(2))
    watched.search.step_ended()
    watched.search.begin()

    watched.patches.undo()
    model(torch.ones(2))

    assert model.__dict__ == before
    assert nn.Module._compiled_call_impl is None
    assert not hasattr(nn.Module.compile, "__wrapped__")
    assert SLOT not in torch.jit._recursive.ignored_attributes
    assert watched.tape.written() == FORWARD


@pytest.mark.usefixtures("watched")
def test_compile_keeps_name_and_signature() -> None:
    """Documentation, mocks made by signature and error messages ask for them."""
    method = nn.Module.compile

    shown = method.__module__, method.__qualname__, list(signature(method).parameters)

    assert hasattr(method, "__wrapped__")
    assert shown == ("torch.nn.modules.module", "Module.compile", ["self", "args", "kwargs"])


def test_taken_slot_is_left_alone() -> None:
    """Another tool may have had the same idea."""
    marker, _ = recording_marker()
    nn.Module._compiled_call_impl = nn.Module._call_impl

    try:
        with pytest.raises(AttributeError, match="is taken"):
            forward.install(marker, Patches())
    finally:
        nn.Module._compiled_call_impl = None
