package simd_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"fmt"
	"os"
	"sync"
	"testing"

	abci "github.com/cometbft/cometbft/abci/types"
	dbm "github.com/cosmos/cosmos-db"
	svrcmd "github.com/cosmos/cosmos-sdk/server/cmd"
	servertypes "github.com/cosmos/cosmos-sdk/server/types"
	"github.com/spf13/cast"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/sdk/internal/generation"
	"github.com/starling-kv/starling/cosmos/sdk/serve"
	"github.com/starling-kv/starling/cosmos/sdk/simd"
	"github.com/starling-kv/starling/statesync/lightblocks"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// envNode is an environment variable that makes this test's program run as a node: one that sends
// altered chunks (lieChunks) or manifests (lieManifests) to joiners, or a joiner that accepts only
// our snapshots (refuseSDK).
const (
	envNode      = "STARLING_TEST_NODE"
	lieChunks    = "alters chunks"
	lieManifests = "alters manifests"
	refuseSDK    = "refuses the SDK's snapshots"
)

// Log messages of a Byzantine node.
const (
	liedChunk    = "sent an altered chunk"
	liedManifest = "sent an altered manifest"
	liedInBand   = "sent an altered in-band chunk"
)

func TestMain(m *testing.M) {
	create := generation.Creator(newLiar)
	switch os.Getenv(envNode) {
	case "":
		os.Exit(m.Run())
	case refuseSDK:
		create = generation.Creator(newRefuser)
	}
	root, err := simd.Command(create)
	if err == nil {
		err = svrcmd.Execute(root, "SIMD", simd.DefaultHome())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// refuser is a wrapped application that rejects snapshots in the SDK's format. Servers offer our
// snapshot of a height later than the SDK's, because it is prepared in the background. A joiner
// that lists snapshots in between would restore the SDK's.
type refuser struct{ *serve.App }

func newRefuser(logger generation.Logger, db dbm.DB, options servertypes.AppOptions) servertypes.Application {
	return refuser{generation.Create(serve.Creator(generation.Creator(simd.New)), logger, db, options).(*serve.App)}
}

func (a refuser) OfferSnapshot(r *abci.RequestOfferSnapshot) (*abci.ResponseOfferSnapshot, error) {
	if r.Snapshot.GetFormat() == generation.CurrentFormat {
		return &abci.ResponseOfferSnapshot{Result: abci.ResponseOfferSnapshot_REJECT_FORMAT}, nil
	}
	return a.App.OfferSnapshot(r)
}

// liar is a wrapped application with a Byzantine proxy in front of its address for joiners:
//
//	joiner ──▶ starling.laddr: the proxy alters responses ──▶ the wrapped application's own address
//
// Its consensus is honest.
type liar struct {
	*serve.App
	logger generation.Logger
	chain  string
	what   string

	mu   sync.Mutex
	conn transport.Conn // connection to the application; guarded by mu
}

// moved replaces the application's address for joiners with a free port.
type moved struct{ servertypes.AppOptions }

func (m moved) Get(name string) any {
	if name == "starling.laddr" {
		return "127.0.0.1:0"
	}
	return m.AppOptions.Get(name)
}

func newLiar(logger generation.Logger, db dbm.DB, options servertypes.AppOptions) servertypes.Application {
	app := generation.Create(serve.Creator(generation.Creator(simd.New)), logger, db, moved{options}).(*serve.App)
	l := &liar{App: app, logger: logger, what: os.Getenv(envNode), chain: chainID}
	address := cast.ToString(options.Get("starling.laddr"))
	if address == "" { // a command other than start
		return l
	}
	_, key, err := ed25519.GenerateKey(nil)
	if err == nil {
		_, err = tcp.Listen(address, tcp.Options{Key: key, ChainID: chainID, Handler: l.proxy(key)})
	}
	if err != nil {
		panic(err)
	}
	return l
}

// proxy forwards all requests, and alters the responses that l.what names.
func (l *liar) proxy(key ed25519.PrivateKey) *transport.Mux {
	mux := &transport.Mux{}
	dialer := tcp.NewDialer(tcp.Options{Key: key, ChainID: l.chain})
	for _, method := range []transport.Method{iavlsync.MethodOffers, iavlsync.MethodManifest, iavlsync.MethodLeaves,
		lightblocks.MethodLightBlock, lightblocks.MethodConsensusParams, lightblocks.MethodHeaders} {
		mux.Handle(method, transport.HandlerFunc(func(ctx context.Context, r transport.Request) ([]byte, error) {
			answer, err := l.forward(ctx, dialer, method, r.Body)
			if err != nil {
				return nil, transport.ErrGone
			}
			switch {
			case method == iavlsync.MethodLeaves && l.what == lieChunks:
				l.logger.Info(liedChunk)
				return altered(answer), nil
			case method == iavlsync.MethodManifest && l.what == lieManifests:
				l.logger.Info(liedManifest)
				return altered(answer), nil
			}
			return answer, nil
		}))
	}
	return mux
}

func (l *liar) forward(ctx context.Context, dialer transport.Dialer, method transport.Method, body []byte) ([]byte, error) {
	l.mu.Lock()
	if l.conn == nil {
		conn, err := dialer.Dial(ctx, transport.Address{HostPort: l.Address()})
		if err != nil {
			l.mu.Unlock()
			return nil, err
		}
		l.conn = conn
	}
	conn := l.conn
	l.mu.Unlock()
	return conn.Call(ctx, transport.Call{Method: method, Body: body, Max: iavlsync.MaxAnswerBytes})
}

// altered returns a response with one bit flipped in the middle, where keys, values or hashes are.
func altered(answer []byte) []byte {
	b := bytes.Clone(answer)
	if len(b) > 0 {
		b[len(b)/2] ^= 1
	}
	return b
}

// LoadSnapshotChunk alters the chunks of in-band joins, in all formats.
func (l *liar) LoadSnapshotChunk(r *abci.RequestLoadSnapshotChunk) (*abci.ResponseLoadSnapshotChunk, error) {
	answer, err := l.App.LoadSnapshotChunk(r)
	if err != nil || len(answer.Chunk) == 0 {
		return answer, err
	}
	l.logger.Info(liedInBand, "format", r.Format, "chunk", r.Chunk)
	return &abci.ResponseLoadSnapshotChunk{Chunk: altered(answer.Chunk)}, nil
}
