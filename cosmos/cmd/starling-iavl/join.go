package main

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	dbm "github.com/cosmos/cosmos-db"
	"github.com/syndtr/goleveldb/leveldb/storage"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/join"
	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/cosmos/tables"
	"github.com/starling-kv/starling/lightblocks"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

const rpcTimeout = 10 * time.Second

// filesBeside are stores of modules that keep files beside the database. Those files are no part of
// the app hash's state: the SDK's own snapshots carry them as extensions.
var filesBeside = map[string]string{"wasm": "the code of its contracts", "08-wasm": "the code of its light clients"}

func runJoin(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	defer func() {
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			err = fmt.Errorf("%w: the same command resumes", errInterrupted)
		}
	}()
	flags := flag.NewFlagSet("join", flag.ContinueOnError)
	home := flags.String("home", "", "the folder of the new node")
	chainID := flags.String("chain-id", "", "the chain")
	peers := flags.String("peers", "", "servers: ID@HOST:PORT or HOST:PORT, separated by commas")
	rpc := flags.String("rpc", "", "CometBFT RPC servers that have headers, separated by commas; needed where the peers have none")
	height := flags.Int64("height", 0, "height of the state (default: the newest that can be proved)")
	trustHeight := flags.Int64("trust-height", 0, "height of a header that you trust")
	trustHash := flags.String("trust-hash", "", "its hash, 64 hexadecimal digits")
	engine := flags.String("db-backend", "", "goleveldb or pebbledb (default: what the home's app.toml or config.toml says)")
	alone := flags.Bool(databaseOnly, false, "make the application's database only, for nodes whose CometBFT gets its state in another way")
	without := flags.Bool("without-files", false, "join although modules of the chain keep files beside the database, which do not come with it")
	if err := parse(flags, args, stdout, stderr, "home", "chain-id", "peers", "trust-height", "trust-hash"); err != nil {
		return err
	}
	hash, err := hex.DecodeString(*trustHash)
	if err != nil || len(hash) != 32 {
		return fmt.Errorf("--trust-hash %q: it is 64 hexadecimal digits", *trustHash)
	}
	backend, err := chooseEngine(*home, *engine, stderr)
	if err != nil {
		return err
	}
	proof := trust{ChainID: *chainID, Height: *trustHeight, Hash: hex.EncodeToString(hash)}
	// A join of this home may be killed before it has tidied up: whether it was is looked for under
	// the lock, whose folder a home with another state does not get.
	if _, err := os.Stat(dbDir(*home, applicationDB)); err == nil && proof.same(*home) != nil {
		return errOtherState(*home)
	}
	addresses, err := parsePeers(*peers)
	if err != nil {
		return err
	}
	var consensus *comet
	if !*alone {
		if consensus, err = openComet(*home, *chainID); err != nil {
			return err
		}
	}
	verifier, err := lightblocks.NewVerifier(lightblocks.Options{ChainID: *chainID, TrustHeight: *trustHeight, TrustHash: hash})
	if err != nil {
		return err
	}
	defer verifier.Close()
	if *rpc != "" {
		for address := range strings.SplitSeq(*rpc, ",") {
			p, err := lightblocks.NewRPC(*chainID, address, rpcTimeout)
			if err != nil {
				return err
			}
			verifier.Add(p)
		}
	}
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dataDir(*home), 0o700); err != nil {
		return err
	}
	lock, err := storage.OpenFile(joiningDir(*home), false)
	if err != nil {
		return fmt.Errorf("lock %s: %w (does another join run?)", joiningDir(*home), err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if _, err := os.Stat(dbDir(*home, applicationDB)); err == nil {
		joined, err := joinedBefore(*home, *height, backend, proof)
		if err != nil {
			return err
		}
		fmt.Fprintf(stdout, "joined at height %d before\n", joined)
		return nil
	}
	dialer := tcp.NewDialer(tcp.Options{Key: key, ChainID: *chainID})
	// The application's database gets its name last: until then, the same command resumes.
	finish := func(height int64) error {
		if consensus != nil {
			if err := consensus.complete(ctx, &headers{*chainID, verifier, dialer, addresses}, height, stderr); err != nil {
				if verifier.Conflict() != nil { // the next run must not take it for a proved one
					err = errors.Join(err, os.RemoveAll(dbDir(*home, joiningDB)))
				}
				return err
			}
		}
		return rename(*home)
	}
	before, err := completeBefore(*home, *height, backend, proof, consensus != nil)
	if err != nil {
		return err
	}
	if before != 0 {
		if err := finish(before); err != nil {
			return err
		}
		fmt.Fprintf(stdout, "joined at height %d before\n", before)
		return nil
	}
	if consensus != nil {
		if _, err := consensus.empty(0); err != nil {
			return err
		}
	}
	var provable join.Headers = verifier
	if consensus != nil {
		provable = stateHeaders{verifier}
	}
	from := time.Now()
	leaves := int64(0) // of the state
	r, err := join.Join(ctx, join.Options{
		Target:  join.InFolder(filepath.Join(joiningDir(*home), chunksFolder), func() (nodedb.Tables, error) { return newTables(dbDir(*home, joiningDB), backend) }),
		Headers: provable, Dialer: dialer, ChooseTimeout: chooseTimeout,
		Addresses: addresses, Height: *height,
		Accept: func(m *iavlsync.Manifest) error {
			leaves, proof.State = leavesOf(m), m.Height
			return accept(m, *without)
		},
		// Late answers of peers may have shown another chain since the app hash was proved.
		Final: func() error {
			if err := verifier.Conflict(); err != nil {
				return err
			}
			fmt.Fprintln(stderr, "all chunks are there: making the database")
			return proof.write(*home)
		},
		Up:   func(c transport.Conn) { verifier.Add(lightblocks.NewProvider(*chainID, c)) },
		Down: verifier.Remove,
		Log:  once(stderr),
	})
	if err == nil {
		// One that was found only now: the next run must not take the state for a complete one.
		if err = verifier.Conflict(); err != nil {
			err = errors.Join(err, os.RemoveAll(dbDir(*home, joiningDB)))
		}
	}
	if errors.Is(err, join.ErrStale) || errors.Is(err, nodedb.ErrOtherJoin) || errors.Is(err, iavlsync.ErrInvalidManifest) {
		err = fmt.Errorf("%w\nTo begin anew, remove %s", err, joiningDir(*home))
	}
	if errors.Is(err, join.ErrNothing) {
		err = explainNothing(err)
	}
	if err != nil {
		return explainFull(err, *home, leaves)
	}
	fmt.Fprintln(stderr, "the database is complete")
	if err := finish(r.Height); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "joined at height %d, app hash %s: %d chunks, %d of them fetched now, %.1f MB in %.1f s\n",
		r.Height, r.AppHash, r.Chunks, r.Fetched, float64(r.Bytes)/1e6, time.Since(from).Seconds())
	return nil
}

// chooseTimeout is how long a state is looked for that can be proved.
const chooseTimeout = time.Minute

var errInterrupted = errors.New("interrupted")

// once writes each text once: what does not change is tried again and again.
func once(w io.Writer) func(text string) {
	said := map[string]bool{}
	return func(text string) {
		if !said[text] {
			said[text] = true
			fmt.Fprintln(w, text)
		}
	}
}

// explainNothing adds to the error of a join that has found no state what to look at.
func explainNothing(err error) error {
	switch {
	case errors.Is(err, lightblocks.ErrConflict):
		return fmt.Errorf("%w\nTwo chains are proved by validators' signatures: do not join, and ask the chain's operators", err)
	case errors.Is(err, lightblocks.ErrTrustExpired):
		return fmt.Errorf("%w\nTake --trust-height and --trust-hash of a newer header, from a source that you trust", err)
	case errors.Is(err, lightblocks.ErrFuture):
		return fmt.Errorf("%w\nCompare this machine's clock", err)
	case errors.Is(err, errNoState):
		return fmt.Errorf("%w\nName running nodes of the chain with --rpc, which have those headers; "+
			"or leave CometBFT's state to the node's own command \"comet bootstrap-state\", with --%s", err, databaseOnly)
	case errors.Is(err, lightblocks.ErrTrustMismatch):
		return fmt.Errorf("%w\nCompare --trust-height and --trust-hash with another source: either they are wrong, or all these peers are of another chain", err)
	case errors.Is(err, lightblocks.ErrUnavailable):
		return fmt.Errorf("%w\nName running nodes of the chain with --rpc, which have those headers; and check that --peers are servers of this chain", err)
	}
	return fmt.Errorf("%w\nCheck that --peers are running servers of this chain", err)
}

// errOtherState is for a home whose application has a state that is not known to be the join's.
func errOtherState(home string) error {
	return fmt.Errorf("%s is there already: a join needs a home without a state", dbDir(home, applicationDB))
}

// joinedBefore tidies up after a join that was killed when its database had its name, and returns
// the height. It fails, and removes nothing, unless the application's database is just as that join
// made it: a node may have made it otherwise, when the join was given up.
func joinedBefore(home string, height int64, wanted dbm.BackendType, proof trust) (int64, error) {
	was, err := readTrust(home)
	if err == nil {
		err = proof.same(home)
	}
	if _, statErr := os.Stat(dbDir(home, joiningDB)); err != nil || !errors.Is(statErr, fs.ErrNotExist) {
		return 0, errors.Join(errOtherState(home), err, statErr)
	}
	if err := sameEngine(dbDir(home, applicationDB), wanted); err != nil {
		return 0, err
	}
	db, err := openApplication(home)
	if err != nil {
		return 0, errors.Join(errOtherState(home), err)
	}
	latest, err := nodedb.Latest(nodedb.Of(db))
	if err = errors.Join(err, db.Close()); err != nil {
		return 0, errors.Join(errOtherState(home), err)
	}
	if latest != was.State || height != 0 && height != latest {
		return 0, errOtherState(home)
	}
	if err := syncData(home); err != nil { // the rename
		return 0, err
	}
	return latest, tidy(home)
}

// completeBefore returns the height of the database of a join that was killed between its last two
// steps; 0: there is none. comets: CometBFT's databases are to follow.
func completeBefore(home string, height int64, wanted dbm.BackendType, proof trust, comets bool) (int64, error) {
	backend, err := backendOf(dbDir(home, joiningDB))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNoDatabase) { // a join had just begun it
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	bytes := int64(openBytes)
	if _, err := os.Stat(dbDir(home, "state")); comets && errors.Is(err, fs.ErrNotExist) {
		bytes = cometBytes
	}
	if err := room(home, bytes); err != nil {
		return 0, err
	}
	db, err := dbm.NewDB(joiningDB, backend, dataDir(home))
	if err != nil {
		// Pebble makes its first files one by one. While the chunks are there, the database can be
		// made anew.
		if _, chunks, _ := nodedb.UnfinishedSpool(filepath.Join(joiningDir(home), chunksFolder)); chunks != nil {
			return 0, nil
		}
		return 0, fmt.Errorf("open %s: %w\nTo begin anew, remove it", dbDir(home, joiningDB), err)
	}
	h, err := nodedb.Latest(nodedb.Of(db))
	closed := db.Close()
	switch {
	case errors.Is(err, nodedb.ErrNoState):
		return 0, closed
	case err != nil || closed != nil:
		return 0, errors.Join(err, closed)
	}
	if err := proof.same(home); err != nil {
		return 0, err
	}
	if err := sameEngine(dbDir(home, joiningDB), wanted); err != nil {
		return 0, err
	}
	if height != 0 && height != h {
		return 0, fmt.Errorf("the join that is complete is of height %d, not %d\nTo begin anew, remove %s", h, height, dbDir(home, joiningDB))
	}
	return h, nil
}

func leavesOf(m *iavlsync.Manifest) (n int64) {
	for i := range m.Stores {
		for k := range m.Stores[i].Entries {
			n += m.Stores[i].Entries[k].Root.Size
		}
	}
	return n
}

// newTables begins a database in a folder.
func newTables(dir string, backend dbm.BackendType) (nodedb.Tables, error) {
	if backend == dbm.PebbleDBBackend {
		return tables.NewPebble(dir)
	}
	return tables.NewGoLevelDB(dir)
}

func known(engine dbm.BackendType) bool {
	return engine == dbm.GoLevelDBBackend || engine == dbm.PebbleDBBackend
}

// chooseEngine returns the engine of the application's database: the one that is asked for, or the
// one that the SDK's start command will take (server/util.go, GetAppDBBackend).
func chooseEngine(home, asked string, stderr io.Writer) (dbm.BackendType, error) {
	app, err := readSettings(home, "app.toml")
	if err != nil {
		return "", err
	}
	comet, err := readSettings(home, "config.toml")
	if err != nil {
		return "", err
	}
	set := cmp.Or(topSetting(app, "app-db-backend"), topSetting(comet, "db_backend"))
	engine := dbm.BackendType(cmp.Or(asked, set, string(dbm.GoLevelDBBackend)))
	switch {
	case !known(engine) && asked == "":
		return "", fmt.Errorf("%s/config has app-db-backend or db_backend %q: a database can be made with %s or %s only. "+
			"Set app-db-backend in app.toml, or give --db-backend; another engine of CometBFT's needs --%s, too",
			home, set, dbm.GoLevelDBBackend, dbm.PebbleDBBackend, databaseOnly)
	case !known(engine):
		return "", fmt.Errorf("--db-backend %q: it is %s or %s", asked, dbm.GoLevelDBBackend, dbm.PebbleDBBackend)
	case set != "" && set != string(engine):
		fmt.Fprintf(stderr, "warning: --db-backend is %s, and %s/config says %s: the node needs the same engine to find the state\n", engine, home, set)
	}
	return engine, nil
}

func parsePeers(list string) (addresses []transport.Address, err error) {
	for text := range strings.SplitSeq(list, ",") {
		a, err := transport.ParseAddress(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("--peers: %w", err)
		}
		addresses = append(addresses, a)
	}
	return addresses, nil
}

// accept refuses chains whose nodes need files that are not in the database.
func accept(m *iavlsync.Manifest, without bool) error {
	for _, s := range m.Stores {
		if what := filesBeside[s.Name]; what != "" && len(s.Entries) > 0 && !without {
			return fmt.Errorf("the chain has a store %q: its module keeps %s in files, which do not come with the database. "+
				"Copy them from a node that you trust, and join with --without-files", s.Name, what)
		}
	}
	return nil
}
