package client_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/types"
	"github.com/spf13/viper"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/internal/ports"
	"github.com/starling-kv/starling/node"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/home"
)

// admin signs as the admin of the network that is used by the examples and the integration test. It
// may write everywhere.
var admin = ed25519.GenPrivKeyFromSecret([]byte("the admin of the examples"))

// A network of one real node in this process, started when the first test needs it.
var network struct {
	sync.Once
	address string // of RPC
	grpc    string // of the gRPC endpoint
	genesis *types.GenesisDoc
	err     error
	stop    func()
}

func TestMain(m *testing.M) {
	network.stop = func() {}
	client.SetCallTimeout(5 * time.Minute)
	code := m.Run()
	network.stop()
	os.Exit(code)
}

// demo returns the RPC address and the genesis document of a running network.
func demo() (address string, genesis *types.GenesisDoc) {
	network.Do(func() { network.err = startNetwork() })
	if network.err != nil {
		panic(network.err)
	}
	return network.address, network.genesis
}

// endpoints calls test with the addresses of both endpoints of the demo network's node. Each is a
// scheme and a host:port, so that a test can replace the host:port by that of a relay.
func endpoints(t *testing.T, test func(t *testing.T, scheme, address string, genesis *types.GenesisDoc)) {
	t.Helper()
	address, genesis := demo()
	t.Run("rpc", func(t *testing.T) { test(t, "tcp://", address, genesis) })
	t.Run("grpc", func(t *testing.T) { test(t, "grpc://", network.grpc, genesis) })
}

func startNetwork() error {
	dir, err := os.MkdirTemp("", "starling-client")
	if err != nil {
		return err
	}
	held, err := ports.Hold(2) // the node itself binds them
	if err != nil {
		return err
	}
	held.Release()
	network.address, network.grpc = held.Address(0), held.Address(1)
	account := hex.EncodeToString(admin.PubKey().Bytes())
	_, err = home.Init(home.InitOptions{
		Home: dir, ChainID: "demo-1",
		App: app.Genesis{Open: true, SnapshotInterval: 5, ChunkBytes: 1000, Admins: []string{account},
			Grants: []app.GenesisGrant{{Grantee: account, Prefix: "fruit/"}, {Grantee: account, Prefix: "test/"}}},
		Edit: func(c *cfg.Config, a *config.App) {
			// A test asks for an older height, and the machine may be slow.
			a.State.KeepRecent = 100_000
			c.RPC.ListenAddress = "tcp://" + network.address
			// The server also ends every response after this time and a second.
			c.RPC.TimeoutBroadcastTxCommit = 5 * time.Minute
			a.GRPC.ListenAddress = network.grpc
			c.P2P.ListenAddress = "tcp://127.0.0.1:0"
			c.Consensus.TimeoutCommit, c.Consensus.CreateEmptyBlocksInterval = 100*time.Millisecond, 0
			c.Instrumentation.Prometheus = false
		},
	})
	if err != nil {
		return err
	}
	conf, err := config.Load(dir, viper.New())
	if err != nil {
		return err
	}
	if network.genesis, err = config.LoadGenesis(conf.CometBFT.GenesisFile()); err != nil {
		return err
	}
	n, err := node.New(context.Background(), conf, log.NewNopLogger())
	if err != nil {
		return err
	}
	network.stop = func() {
		if err := n.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stop the node:", err)
		}
		if err := os.RemoveAll(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	return n.Start(context.Background())
}
