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
	"strconv"
	"strings"
	"time"

	dbm "github.com/cosmos/cosmos-db"
	"github.com/syndtr/goleveldb/leveldb/storage"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/join"
	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/cosmos/tables"
	"github.com/starling-kv/starling/internal/durable"
	"github.com/starling-kv/starling/statesync/lightblocks"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

const rpcTimeout = 10 * time.Second

func runJoin(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	defer func() {
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			err = fmt.Errorf("%w: the same command resumes", errInterrupted)
		}
	}()
	flags := flag.NewFlagSet("join", flag.ContinueOnError)
	home := flags.String("home", "", "home folder of the new node")
	chainID := flags.String("chain-id", "", "chain ID")
	peers := flags.String("peers", "", "servers, as ID@HOST:PORT or HOST:PORT, separated by commas")
	rpc := flags.String("rpc", "", "CometBFT RPC servers that provide headers, separated by commas; needed if the peers have none")
	height := flags.Int64("height", 0, "height of the state (default: the newest that can be verified)")
	trustHeight := flags.Int64("trust-height", 0, "height of a trusted header")
	trustHash := flags.String("trust-hash", "", "hash of the trusted header, 64 hexadecimal digits")
	engine := flags.String("db-backend", "", "goleveldb or pebbledb (default: as in the home's app.toml or config.toml)")
	alone := flags.Bool(databaseOnly, false, "write only the application's database, for nodes whose CometBFT gets its state by other means")
	without := flags.Bool("without-files", false, "join without the code of contracts and light clients, which modules keep in files outside the database")
	if err := parse(flags, args, stdout, stderr, "home", "chain-id", "peers", "trust-height", "trust-hash"); err != nil {
		return err
	}
	hash, err := hex.DecodeString(*trustHash)
	if err != nil || len(hash) != 32 {
		return fmt.Errorf("--trust-hash %q does not have 64 hexadecimal digits", *trustHash)
	}
	backend, err := chooseEngine(*home, *engine, stderr)
	if err != nil {
		return err
	}
	snapshots, err := snapshotInterval(*home)
	if err != nil {
		return err
	}
	proof := trust{ChainID: *chainID, Height: *trustHeight, Hash: hex.EncodeToString(hash)}
	// An earlier join of this home may have been killed before it tidied up, or its node may not
	// have stored a block yet. Look for both while holding the lock.
	_, err = os.Stat(dbDir(*home, applicationDB))
	other := err == nil && proof.same(*home) != nil
	if other && *alone {
		return errOtherState(*home)
	}
	addresses, err := parsePeers(*peers)
	if err != nil {
		return err
	}
	var consensus *comet
	if !*alone {
		if consensus, err = openComet(*home, *chainID); err != nil {
			if other {
				err = fmt.Errorf("%w\n%w", errOtherState(*home), err)
			}
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
		return fmt.Errorf("lock %s: %w (is another join running?)", joiningDir(*home), err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	dialer := tcp.NewDialer(tcp.Options{Key: key, ChainID: *chainID})
	if _, err := os.Stat(dbDir(*home, applicationDB)); err == nil {
		joined, err := rejoin(ctx, *home, *height, backend, proof, consensus, &headers{*chainID, verifier, dialer, addresses}, stderr)
		if err != nil {
			return err
		}
		fmt.Fprintf(stdout, "already joined at height %d\n", joined)
		return nil
	}
	code := &codeFiles{home: *home, dialer: dialer, addresses: addresses, without: *without, stderr: stderr}
	// The application's database is renamed last. Until then, the same command resumes.
	finish := func(height int64) error {
		if err := code.complete(ctx); err != nil {
			return err
		}
		if consensus != nil {
			if err := consensus.complete(ctx, &headers{*chainID, verifier, dialer, addresses}, height, stderr); err != nil {
				if verifier.Conflict() != nil { // the next run must not consider it verified
					err = errors.Join(err, os.RemoveAll(dbDir(*home, joiningDB)))
				}
				return err
			}
		}
		if err := rename(*home); err != nil || consensus == nil {
			return err
		}
		fmt.Fprintln(stderr, "next: start the node. If it stops before it has stored a block, run this command again before the next start")
		return nil
	}
	before, err := completeBefore(*home, *height, backend, proof, consensus != nil)
	if err != nil {
		return err
	}
	if before != 0 {
		if err := finish(before); err != nil {
			return err
		}
		fmt.Fprintf(stdout, "already joined at height %d\n", before)
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
	leaves := int64(0) // leaves in the state
	r, err := join.Join(ctx, join.Options{
		Target: join.InFolder(filepath.Join(joiningDir(*home), chunksFolder), snapshots,
			func() (nodedb.Tables, error) { return newTables(dbDir(*home, joiningDB), backend) }, making(stderr)),
		Headers: provable, Dialer: dialer, ChooseTimeout: chooseTimeout,
		Addresses: addresses, Height: *height,
		Accept: func(m *iavlsync.Manifest) error {
			leaves, proof.State = leavesOf(m), m.Height
			code.announce(m)
			return nil
		},
		// Peers may have presented another chain since the app hash was verified.
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
		// If another chain appears only now, the next run must not consider this state complete.
		if err = verifier.Conflict(); err != nil {
			err = errors.Join(err, os.RemoveAll(dbDir(*home, joiningDB)))
		}
	}
	if errors.Is(err, join.ErrStale) || errors.Is(err, nodedb.ErrOtherJoin) || errors.Is(err, iavlsync.ErrInvalidManifest) {
		err = fmt.Errorf("%w\nTo start over, remove %s", err, joiningDir(*home))
	}
	err = explainPeers(err)
	if err != nil {
		return explainFull(err, *home, leaves)
	}
	fmt.Fprintln(stderr, "the database is complete")
	if err := finish(r.Height); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "joined at height %d, app hash %s: %d chunks, %d of them fetched now, %s in %.1f s\n",
		r.Height, r.AppHash, r.Chunks, r.Fetched, fetched(r), time.Since(from).Seconds())
	return nil
}

// fetched describes the bytes that a join has received, and those of their chunks if some were
// compressed.
func fetched(r *join.Result) string {
	text := fmt.Sprintf("%.1f MB", float64(r.Bytes)/1e6)
	if r.Bytes < r.ChunkBytes {
		text += fmt.Sprintf(" (%.1f MB before compression)", float64(r.ChunkBytes)/1e6)
	}
	return text
}

// chooseTimeout is the time limit for finding a state that can be verified.
const chooseTimeout = time.Minute

var errInterrupted = errors.New("interrupted")

// once writes each text only once, although attempts are repeated.
func once(w io.Writer) func(text string) {
	said := map[string]bool{}
	return func(text string) {
		if !said[text] {
			said[text] = true
			fmt.Fprintln(w, text)
		}
	}
}

// making returns a function that writes how far the database is, at most every 5 seconds.
func making(w io.Writer) func(share float64) {
	var began, said time.Time
	return func(share float64) {
		now := time.Now()
		if began.IsZero() {
			began, said = now, now
		}
		if now.Sub(said) < 5*time.Second {
			return
		}
		said = now
		left := time.Duration(float64(now.Sub(began)) * (1 - share) / share)
		fmt.Fprintf(w, "%.0f%% of the database is made, about %v left\n", 100*share, max(left.Round(time.Second), time.Second))
	}
}

// explainPeers adds the next step to the error of a join that no peer could help.
func explainPeers(err error) error {
	var end *join.PeersError
	if !errors.As(err, &end) || errors.Is(err, join.ErrStale) {
		return err
	}
	switch {
	case errors.Is(err, lightblocks.ErrConflict):
		return fmt.Errorf("%w\nThere are validator signatures for two chains: do not join, and ask the chain's operators", err)
	case errors.Is(err, lightblocks.ErrTrustExpired):
		return fmt.Errorf("%w\nUse --trust-height and --trust-hash of a newer header, from a source that you trust", err)
	case errors.Is(err, lightblocks.ErrFuture):
		return fmt.Errorf("%w\nCheck this machine's clock", err)
	case errors.Is(err, errNoState):
		return fmt.Errorf("%w\nName running nodes of the chain with --rpc, which have these headers, "+
			"or leave CometBFT's state to the node's own command \"comet bootstrap-state\", with --%s", err, databaseOnly)
	case errors.Is(err, lightblocks.ErrTrustMismatch):
		return fmt.Errorf("%w\nCompare --trust-height and --trust-hash with another source: either they are wrong, or all peers belong to another chain", err)
	case errors.Is(err, lightblocks.ErrUnavailable):
		return fmt.Errorf("%w\nName running nodes of the chain with --rpc, which have these headers, and check that --peers are servers of this chain", err)
	}
	switch {
	case errors.Is(err, join.ErrStalled):
		return fmt.Errorf("%w\nThe same command resumes. Check the servers, or name others with --peers", err)
	case allStrangers(end):
		return fmt.Errorf("%w\nCompare --chain-id and --peers with the addresses that the servers print when they start", err)
	case errors.Is(err, join.ErrNoPeers):
		return fmt.Errorf("%w\nName other servers with --peers: the same command resumes", err)
	}
	return fmt.Errorf("%w\nCheck that --peers are running servers of this chain", err)
}

// errOtherState reports an application's state that may not come from this join.
func errOtherState(home string) error {
	return fmt.Errorf("%s already exists: a join needs a home without a state", dbDir(home, applicationDB))
}

// joinedBefore tidies up after a join that was killed after renaming its database, and returns the
// height. It fails, and removes nothing, unless the application's database has exactly the state of
// that join: a node may have created another state after the join was abandoned.
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
	if err := durable.SyncDir(dataDir(home)); err != nil { // makes the rename durable
		return 0, err
	}
	return latest, tidy(home)
}

// completeBefore returns the height of the complete database of a join that was killed before
// renaming it, or 0 if there is none. comets reports whether CometBFT's databases are still to be
// written.
func completeBefore(home string, height int64, wanted dbm.BackendType, proof trust, comets bool) (int64, error) {
	backend, err := backendOf(dbDir(home, joiningDB))
	// With these errors, the join had at most begun to write the database.
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNoDatabase) {
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
		// Pebble creates its first files one by one. While the chunks exist, the database can be
		// rebuilt.
		if _, chunks, _ := nodedb.UnfinishedSpool(filepath.Join(joiningDir(home), chunksFolder)); chunks != nil {
			return 0, nil
		}
		return 0, fmt.Errorf("open %s: %w\nTo start over, remove it", dbDir(home, joiningDB), err)
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
		return 0, fmt.Errorf("the complete join is at height %d, not %d\nTo start over, remove %s", h, height, dbDir(home, joiningDB))
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

// newTables creates a database in a folder.
func newTables(dir string, backend dbm.BackendType) (nodedb.Tables, error) {
	if backend == dbm.PebbleDBBackend {
		return tables.NewPebble(dir)
	}
	return tables.NewGoLevelDB(dir)
}

func known(engine dbm.BackendType) bool {
	return engine == dbm.GoLevelDBBackend || engine == dbm.PebbleDBBackend
}

// chooseEngine returns the engine of the application's database: the given one, or the one that the
// SDK's start command will use (server/util.go, GetAppDBBackend).
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
		return "", fmt.Errorf("%s/config has app-db-backend or db_backend %q: a database can only be written with %s or %s. "+
			"Set app-db-backend in app.toml or --db-backend; if CometBFT's engine is different, --%s is needed, too",
			home, set, dbm.GoLevelDBBackend, dbm.PebbleDBBackend, databaseOnly)
	case !known(engine):
		return "", fmt.Errorf("--db-backend %q is neither %s nor %s", asked, dbm.GoLevelDBBackend, dbm.PebbleDBBackend)
	case set != "" && set != string(engine):
		fmt.Fprintf(stderr, "warning: --db-backend is %s, but %s/config has %s: the node finds the state only with the same engine\n", engine, home, set)
	}
	return engine, nil
}

// snapshotInterval returns the number of blocks between the snapshots that the home's node will
// take, by its app.toml; 0: none, or not set there.
func snapshotInterval(home string) (int64, error) {
	app, err := readSettings(home, "app.toml")
	if err != nil {
		return 0, err
	}
	text := setting(app, "state-sync", "snapshot-interval")
	if text == "" {
		return 0, nil
	}
	interval, err := strconv.ParseInt(text, 0, 64)
	if err != nil {
		return 0, fmt.Errorf("%s/config/app.toml has snapshot-interval %q, which is not a number of blocks: set a number", home, text)
	}
	return interval, nil
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
