package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	dbm "github.com/cosmos/cosmos-db"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/join"
	"github.com/starling-kv/starling/statesync/lightblocks"
	"github.com/starling-kv/starling/transport"
)

// TestEnd: a join whose peers are of no use ends with what each peer answered, an exit status and
// the next step.
func TestEnd(t *testing.T) {
	s := newStopped(t, dbm.GoLevelDBBackend)
	address := serving(t, "--home", s.home)
	_, hostPort, _ := strings.Cut(address, "@")
	hash := fmt.Sprintf("%X", s.blocks[trusted])
	for name, test := range map[string]struct {
		chain, peers, hash string
		status             int
		want               []string
	}{
		"another chain": {"other", hostPort, hash, exitUsage,
			[]string{"no peer is left\n  " + hostPort + "  the peer belongs to another chain: \"demo-1\"", "\nCompare --chain-id and --peers with the addresses"}},
		"another id": {chainID, strings.Repeat("ab", 20) + "@" + hostPort, hash, exitUsage,
			[]string{"the peer has another node id", "\nCompare --chain-id and --peers with the addresses"}},
	} {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			err := run(t.Context(), []string{"join", "--database-only", "--home", home, "--chain-id", test.chain, "--peers", test.peers,
				"--trust-height", fmt.Sprint(trusted), "--trust-hash", test.hash}, io.Discard, io.Discard)
			for _, want := range test.want {
				require.ErrorContains(t, err, want)
			}
			require.Equal(t, test.status, exitStatus(err))
		})
	}
}

// TestExitStatus: the exit statuses are those of starlingd (docs/reference/errors.md).
func TestExitStatus(t *testing.T) {
	ended := func(err error, peers ...join.Peer) error {
		return explainPeers(&join.PeersError{Err: err, Peers: peers})
	}
	nothing := func(err error) error { return fmt.Errorf("%w: height 5: %w", join.ErrNothing, err) }
	silent, banned, refused := join.Peer{Err: context.DeadlineExceeded}, join.Peer{ID: "a", Err: join.ErrNoPeers, Final: true}, join.Peer{Err: syscall.ECONNREFUSED}
	other := join.Peer{Err: transport.ErrWrongChain, Final: true}
	offers := join.Peer{ID: "b"}
	for status, errs := range map[int][]error{
		0:           {nil},
		exitFailed:  {errors.New("x"), errInterrupted, ended(join.ErrNothing, silent, refused), ended(join.ErrStalled, silent, other), ended(join.ErrStale, refused)},
		exitUsage:   {errUsage, ended(join.ErrNoPeers, other, other), ended(nothing(lightblocks.ErrTrustMismatch), offers), ended(nothing(lightblocks.ErrTrustExpired), offers)},
		exitRefused: {ended(join.ErrNoPeers, banned, other), ended(join.ErrNothing, offers, silent), ended(join.ErrStale, offers), ended(nothing(lightblocks.ErrConflict), offers), fmt.Errorf("%w", lightblocks.ErrConflict)},
		exitFull:    {explainFull(syscall.ENOSPC, t.TempDir(), 0), syscall.EDQUOT},
	} {
		for _, err := range errs {
			require.Equal(t, status, exitStatus(err), "%v", err)
		}
	}
}

// TestCopyHasAKey: copies of a home are different peers, unless the operator names one key.
func TestCopyHasAKey(t *testing.T) {
	s := newStopped(t, dbm.GoLevelDBBackend)
	id := func(t *testing.T, args ...string) string {
		id, _, _ := strings.Cut(serving(t, append([]string{"--home", s.home}, args...)...), "@")
		return id
	}
	key := filepath.Join(t.TempDir(), "serve_key.json")
	// One process at a time can open the databases.
	var ids []string
	for _, args := range [][]string{nil, nil, {"--key", key}, {"--key", key}} {
		t.Run("", func(t *testing.T) { ids = append(ids, id(t, args...)) })
	}
	require.NotEqual(t, ids[0], ids[1])
	require.Equal(t, ids[2], ids[3])
	require.FileExists(t, key)
}
