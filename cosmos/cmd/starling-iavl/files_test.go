package main

import (
	"bytes"
	"crypto/sha256"
	"io"
	"os"
	"path/filepath"
	"testing"

	dbm "github.com/cosmos/cosmos-db"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/codefiles"
	"github.com/starling-kv/starling/cosmos/iavlsync"
)

// TestCodeFiles: the code of contracts comes with the state, and only with the hashes in it. Until
// it is complete, the home has no state that a node could start with.
func TestCodeFiles(t *testing.T) {
	one, two := []byte("\x00asm one"), []byte("\x00asm two")
	hashes := []iavlsync.Hash{sha256.Sum256(one), sha256.Sum256(two)}
	s := newChain(t, dbm.GoLevelDBBackend, 0, 2, nil, one, two)
	address := serving(t, "--home", s.home)
	wasm := codefiles.Of("wasm")
	file := func(home string, h iavlsync.Hash) string {
		return filepath.Join(home, "wasm", "wasm", "state", "wasm", h.String())
	}
	join := func(home string, more ...string) (out, progress string, err error) {
		var o, p bytes.Buffer
		err = run(t.Context(), s.join(home, address, more...), &o, &p)
		return o.String(), p.String(), err
	}
	complete := func(home string) {
		t.Helper()
		missing, err := wasm.Missing(home, hashes)
		require.NoError(t, err)
		require.Empty(t, missing)
		require.DirExists(t, dbDir(home, applicationDB))
	}
	newHome := func() string {
		home := t.TempDir()
		writeGenesis(t, home, chainID)
		return home
	}

	home := newHome()
	_, progress, err := join(home)
	require.NoError(t, err, progress)
	require.Contains(t, progress, `the chain has a store "wasm": its module keeps the code of its contracts in files`)
	require.Contains(t, progress, "the code of its contracts is complete: 2 files, 2 of them fetched now")
	complete(home)

	// The server's file is of another contract.
	require.NoError(t, os.WriteFile(file(s.home, hashes[1]), []byte("\x00asm another"), 0o600))
	home = newHome()
	_, _, err = join(home)
	require.ErrorContains(t, err, "1 of 2 files with the code of its contracts are missing in wasm/wasm: without them, the node stops at the first block that calls a contract")
	require.ErrorContains(t, err, "\n  "+address+"  file "+hashes[1].String()+": the file does not have the hash in the state")
	require.ErrorContains(t, err, "The same command then checks them and goes on")
	require.Equal(t, exitFailed, exitStatus(err))
	require.NoDirExists(t, dbDir(home, applicationDB))
	require.FileExists(t, file(home, hashes[0]))
	require.NoFileExists(t, file(home, hashes[1]))
	// The operator copies a wrong one, too, and then the right one.
	require.NoError(t, os.WriteFile(file(home, hashes[1]), []byte("wrong"), 0o600))
	_, _, err = join(home)
	require.ErrorContains(t, err, "1 of 2 files")
	require.NoError(t, os.WriteFile(file(home, hashes[1]), two, 0o600))
	out, progress, err := join(home)
	require.NoError(t, err)
	require.Contains(t, out, "already joined at height ")
	require.Contains(t, progress, "2 files, 0 of them fetched now")
	complete(home)

	// Without the files, if the operator wants it so.
	home = newHome()
	_, progress, err = join(home, "--without-files")
	require.NoError(t, err)
	require.Contains(t, progress, "warning: 2 of 2 files with the code of its contracts are missing")
	require.DirExists(t, dbDir(home, applicationDB))
	require.NoDirExists(t, filepath.Join(home, "wasm"))

	// A peer that is gone says so.
	home = newHome()
	require.NoError(t, os.RemoveAll(filepath.Join(s.home, "wasm")))
	_, _, err = join(home)
	require.ErrorContains(t, err, "2 of 2 files")
	require.ErrorContains(t, err, "the peer does not have it")
	require.ErrorContains(t, run(t.Context(), s.join(home, "127.0.0.1:1"), io.Discard, io.Discard), "connect: connection refused")
}
