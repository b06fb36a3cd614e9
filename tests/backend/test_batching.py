from __future__ import annotations

from afarm.backend import join_and_pad, length_sorted_batches, pad


def test_pads_go_on_the_asked_side_and_are_masked() -> None:
    ids, mask = pad([[5, 6, 7], [8]], 0, "left")
    assert ids.tolist() == [[5, 6, 7], [0, 0, 8]]
    assert mask.tolist() == [[1, 1, 1], [0, 0, 1]]
    ids, mask = pad([[5, 6, 7], [8]], 0, "right")
    assert ids.tolist() == [[5, 6, 7], [8, 0, 0]]
    assert mask.tolist() == [[1, 1, 1], [1, 0, 0]]


def test_no_sequences_make_an_empty_batch() -> None:
    assert tuple(pad([], 0)[0].shape) == (0, 0)


def test_response_mask_leaves_out_prompt_and_pads_even_where_the_pad_id_is_a_real_token() -> None:
    batch = join_and_pad([[1, 0], [3]], [[0], [4, 0, 5]], pad_id=0)
    assert batch.input_ids.tolist() == [[1, 0, 0, 0], [3, 4, 0, 5]]
    assert batch.attention_mask.tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert batch.response_mask.tolist() == [[False, False, True, False], [False, True, True, True]]


def test_batches_of_like_length_hold_every_index_once_longest_first() -> None:
    assert length_sorted_batches([3, 9, 1, 9, 4], 2) == [[1, 3], [4, 0], [2]]
    assert length_sorted_batches([], 2) == []
