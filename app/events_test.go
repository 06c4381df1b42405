package app

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	abci "github.com/cometbft/cometbft/abci/types"

	"github.com/starling-kv/starling/app/event"
	"github.com/starling-kv/starling/tx"
)

// heard records events as the log does.
type heard struct {
	begun, committed int64
	blocks           []event.Block
	answer           func(event.Request, time.Duration) (event.Answer, error)
}

func (h *heard) Begin(height int64) error   { h.begun = height; return nil }
func (h *heard) Commit(b event.Block) error { h.blocks = append(h.blocks, b); return nil }
func (h *heard) Committed(height int64)     { h.committed = height }

func (h *heard) Answer(_ context.Context, r event.Request, wait time.Duration) (event.Answer, error) {
	return h.answer(r, wait)
}

func newHeardApp(t *testing.T, h *heard) *App {
	t.Helper()
	a, err := New(Options{Store: new(memoryStore), Events: h, WatchWait: time.Second, ChainID: testChain})
	require.NoError(t, err)
	_, err = a.InitChain(ctx, initRequest(`{"admins":["@admin"],"grants":[{"grantee":"@alice","prefix":""}]}`))
	require.NoError(t, err)
	return a
}

// Each change of a key is an event, in the order of the operations, even if the transaction changes
// the key again. Failed transactions, and operations without effect, make no event.
func TestEvents(t *testing.T) {
	t.Parallel()
	h := new(heard)
	a := newHeardApp(t, h)
	block := func(height int64, txs ...[]byte) []string {
		t.Helper()
		res, err := a.FinalizeBlock(ctx, &abci.RequestFinalizeBlock{Height: height, Txs: txs})
		require.NoError(t, err)
		require.Len(t, h.blocks, int(height)-1, "before the commit")
		_, err = a.Commit(ctx, nil)
		require.NoError(t, err)
		require.Equal(t, height, h.committed)
		b := h.blocks[height-1]
		require.Equal(t, height, b.Height)
		require.Equal(t, txs, b.Txs)
		var lines []string
		for _, c := range b.Changes {
			lines = append(lines, fmt.Sprintf("%d %s %q=%q was %q", c.Tx, c.Kind, c.Key, c.Value, c.Previous))
			require.False(t, c.Omitted)
		}
		var kinds []string // CometBFT's events are the same
		for i, result := range res.TxResults {
			for _, e := range result.Events {
				kinds = append(kinds, fmt.Sprintf("%d %s %s", i, e.Attributes[1].Value, e.Attributes[0].Value))
			}
		}
		for i, c := range b.Changes {
			require.Equal(t, kinds[i], fmt.Sprintf("%d %s %x", c.Tx, c.Kind, c.Key))
		}
		require.Len(t, kinds, len(lines))
		return lines
	}
	require.Equal(t, []string{
		`0 put "b"="1" was ""`, `0 put "a"="1" was ""`, `0 put "b"="2" was "1"`, `0 delete "a"="" was "1"`, `2 put "a"="3" was ""`,
	}, block(1,
		sign(t, "alice", 0, put("b", "1"), put("a", "1"), put("b", "2"), del("a"), put("b", "2")),
		sign(t, "alice", 1, put("c", "1"), cas("b", "other", "3")), // fails after a change
		sign(t, "alice", 2, put("a", "3"), del("absent")),
	))
	bob := account("bob")
	require.Equal(t, []string{
		fmt.Sprintf("0 grant %q=%q was %q", GrantKey(bob, []byte("x")), encodeUint64(9), ""),
		fmt.Sprintf("0 admin %q=%q was %q", AdminKey(bob), adminValue, ""),
		fmt.Sprintf("1 admin %q=%q was %q", AdminKey(bob), "", adminValue),
		fmt.Sprintf("1 revoke %q=%q was %q", GrantKey(bob, []byte("x")), "", encodeUint64(9)),
	}, block(2,
		sign(t, "admin", 0, grantOp(bob, "x", 9), adminOp(bob, false)),
		sign(t, "admin", 1, adminOp(bob, true), revokeOp(bob, "x")),
	))
	require.Empty(t, block(3))
}

// The previous values of a block are limited together: those beyond the limit are left out and
// marked as omitted.
func TestPreviousValuesAreLimited(t *testing.T) {
	t.Parallel()
	var e events
	value := make([]byte, MaxPreviousBytes/2)
	var journal []undoRecord
	for _, k := range []string{"a", "b", "c", "d"} {
		journal = append(journal, undoRecord{&overlayEntry{key: []byte(k)}, contentOf(value), nil, true})
	}
	journal[3].value = content{}
	journal[3].after = []byte("new")
	e.collect(0, journal)
	require.Len(t, e.changes, 4)
	for i, omitted := range []bool{false, false, true, false} {
		require.Equal(t, omitted, e.changes[i].Omitted)
		require.Equal(t, i < 2, len(e.changes[i].Previous) > 0)
	}
}

func TestQueryEvents(t *testing.T) {
	t.Parallel()
	h := new(heard)
	a := newHeardApp(t, h)
	want := event.Answer{Next: event.Token{Height: 5}, Head: 4, Least: 3}
	h.answer = func(r event.Request, wait time.Duration) (event.Answer, error) {
		require.Equal(t, time.Second, wait)
		require.EqualValues(t, 7, r.WaitMS)
		return want, nil
	}
	r := event.Request{From: event.Token{Height: 4}, WaitMS: 7}
	res, err := a.Query(ctx, &abci.RequestQuery{Path: event.Path, Data: r.Encode()})
	require.NoError(t, err)
	require.Zero(t, res.Code)
	require.EqualValues(t, 4, res.Height)
	got, err := event.DecodeAnswer(res.Value, &r)
	require.NoError(t, err)
	require.Equal(t, want, got)

	r.From.Height, want.Next = 2, event.Token{Height: 2}
	res, err = a.Query(ctx, &abci.RequestQuery{Path: event.Path, Data: r.Encode()})
	require.NoError(t, err)
	require.Contains(t, res.Log, "compacted")

	h.answer = func(event.Request, time.Duration) (event.Answer, error) { return event.Answer{}, event.ErrBusy }
	for code, req := range map[tx.Code]*abci.RequestQuery{
		tx.CodeBusy:       {Data: r.Encode()},
		tx.CodeBadRequest: {Data: []byte{0xff}},
	} {
		req.Path = event.Path
		res, err := a.Query(ctx, req)
		require.NoError(t, err)
		require.EqualValues(t, code, res.Code)
	}
	for _, req := range []*abci.RequestQuery{{Prove: true}, {Height: 3}} {
		req.Path = event.Path
		res, err := a.Query(ctx, req)
		require.NoError(t, err)
		require.EqualValues(t, tx.CodeBadRequest, res.Code)
	}
	none := newTestApp(t, new(memoryStore))
	res, err = none.Query(ctx, &abci.RequestQuery{Path: event.Path})
	require.NoError(t, err)
	require.EqualValues(t, tx.CodeUnreadable, res.Code)
}
