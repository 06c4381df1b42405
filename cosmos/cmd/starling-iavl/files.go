package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	dbm "github.com/cosmos/cosmos-db"

	"github.com/starling-kv/starling/cosmos/codefiles"
	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/transport"
)

// codeFiles are the files with code of a joined home, which the state has hashes of.
type codeFiles struct {
	home      string
	dialer    transport.Dialer
	addresses []transport.Address
	without   bool // --without-files
	stderr    io.Writer
}

// announce names, before the join begins, the modules of the state that keep files.
func (c *codeFiles) announce(m *iavlsync.Manifest) {
	for _, s := range m.Stores {
		module := codefiles.Of(s.Name)
		switch {
		case module == nil || len(s.Entries) == 0:
		case c.without:
			fmt.Fprintf(c.stderr, "warning: the chain has a store %q: its module keeps %s in files. Without them, the node stops at the first block that %s\n",
				s.Name, module.What, module.Use)
		default:
			fmt.Fprintf(c.stderr, "the chain has a store %q: its module keeps %s in files, which follow the state, and must have the hashes in it\n", s.Name, module.What)
		}
	}
}

// complete fetches the files that the complete database has hashes of, and the home does not have.
// With --without-files it only warns.
func (c *codeFiles) complete(ctx context.Context) error {
	var peers []transport.Conn
	answers := make([]string, len(c.addresses)) // last errors; "" of a peer without one
	defer func() {
		for _, conn := range peers {
			if conn != nil {
				_ = conn.Close() // the connection is no longer needed
			}
		}
	}()
	hashes, err := c.hashes()
	switch {
	case err != nil && c.without:
		fmt.Fprintf(c.stderr, "warning: the files with code are not checked: %v\n", err)
		return nil
	case err != nil:
		return fmt.Errorf("%w\nTo join without files: --without-files", err)
	}
	for i := range codefiles.Modules {
		m := &codefiles.Modules[i]
		missing, err := m.Missing(c.home, hashes[i])
		if err != nil {
			return err
		}
		if c.without {
			if len(missing) > 0 {
				fmt.Fprintf(c.stderr, "warning: %s\n", c.advice(m, len(missing), len(hashes[i])))
			}
			continue
		}
		if len(missing) > 0 && peers == nil {
			peers = c.connect(ctx, answers)
		}
		left := 0
		for _, h := range missing {
			b := c.fetch(ctx, peers, answers, h)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if b == nil {
				left++
			} else if err := m.Write(c.home, b); err != nil {
				return explainFullComet(err, c.home)
			}
		}
		if left > 0 {
			var said strings.Builder
			for k, a := range c.addresses {
				fmt.Fprintf(&said, "\n  %s  %s", a, answers[k])
			}
			return fmt.Errorf("%s%s\nThe same command then checks them and goes on, without fetching the state again. Without these files: --without-files",
				c.advice(m, left, len(hashes[i])), &said)
		}
		if n := len(hashes[i]); n > 0 {
			fmt.Fprintf(c.stderr, "%s is complete: %d files, %d of them fetched now, with the hashes in the state\n", m.What, n, len(missing))
		}
	}
	return nil
}

// advice says what is missing, what it stops, and how to get it.
func (c *codeFiles) advice(m *codefiles.Module, missing, all int) string {
	folder := m.Folder(c.home)
	if inHome, err := filepath.Rel(c.home, folder); err == nil {
		folder = inHome
	}
	return fmt.Sprintf("%d of %d files with %s are missing in %s: without them, the node stops at the first block that %s. "+
		"Copy this folder from the home of a stopped node", missing, all, m.What, folder, m.Use)
}

// hashes returns the hashes of the files of each of codefiles.Modules.
func (c *codeFiles) hashes() (all [][]iavlsync.Hash, err error) {
	backend, err := backendOf(dbDir(c.home, joiningDB))
	if err != nil {
		return nil, err
	}
	db, err := dbm.NewDB(joiningDB, backend, dataDir(c.home))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	for i := range codefiles.Modules {
		hashes, err := codefiles.Modules[i].Hashes(reads(db))
		if err != nil {
			return nil, err
		}
		all = append(all, hashes)
	}
	return all, nil
}

// connect dials all peers once. The connection to one that does not answer is nil.
func (c *codeFiles) connect(ctx context.Context, answers []string) []transport.Conn {
	peers := make([]transport.Conn, len(c.addresses))
	for k, a := range c.addresses {
		dial, done := context.WithTimeout(ctx, rpcTimeout)
		conn, err := c.dialer.Dial(dial, a)
		done()
		if err != nil {
			answers[k] = err.Error()
			continue
		}
		peers[k] = conn
	}
	return peers
}

// fetch returns the file with a hash from the first peer that has it, or nil. A peer is not asked
// again after a failure other than that it does not have the file, or is busy.
func (c *codeFiles) fetch(ctx context.Context, peers []transport.Conn, answers []string, h iavlsync.Hash) []byte {
	for k, conn := range peers {
		if conn == nil {
			continue
		}
		b, err := codefiles.Fetch(ctx, conn, h)
		if err == nil {
			return b
		}
		answers[k] = fmt.Sprintf("file %s: %v", h, err)
		// Another failure, such as silence, would delay every file.
		if !errors.Is(err, transport.ErrGone) && !errors.Is(err, transport.ErrBusy) {
			_ = conn.Close() // the connection is no longer needed
			peers[k] = nil
		}
	}
	return nil
}
