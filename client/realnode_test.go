package client_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
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
	"github.com/starling-kv/starling/node"
)

// admin signs as the admin of the network that the examples and the integration test talk to; it may write everywhere.
var admin = ed25519.GenPrivKeyFromSecret([]byte("the admin of the examples"))

// A network of one real node in this process, made when the first test asks for it.
var network struct {
	sync.Once
	address string
	genesis *types.GenesisDoc
	err     error
	stop    func()
}

func TestMain(m *testing.M) {
	network.stop = func() {}
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

func startNetwork() error {
	home, err := os.MkdirTemp("", "starling-client")
	if err != nil {
		return err
	}
	network.address, err = freeAddress()
	if err != nil {
		return err
	}
	account := hex.EncodeToString(admin.PubKey().Bytes())
	_, err = node.Init(node.InitOptions{
		Home: home, ChainID: "demo-1",
		App: app.Genesis{Open: true, SnapshotInterval: 5, ChunkBytes: 1000, Admins: []string{account},
			Grants: []app.GenesisGrant{{Grantee: account, Prefix: "fruit/"}, {Grantee: account, Prefix: "test/"}}},
		Edit: func(c *cfg.Config, a *node.AppConfig) {
			a.State.KeepRecent = 100_000 // a test asks for an older height, and the machine may be slow
			c.RPC.ListenAddress = "tcp://" + network.address
			c.P2P.ListenAddress = "tcp://127.0.0.1:0"
			c.Consensus.TimeoutCommit = 100 * time.Millisecond
			c.Instrumentation.Prometheus = false
		},
	})
	if err != nil {
		return err
	}
	config, err := node.LoadConfig(home, viper.New())
	if err != nil {
		return err
	}
	if network.genesis, err = node.LoadGenesis(config.CometBFT.GenesisFile()); err != nil {
		return err
	}
	n, err := node.New(context.Background(), config, log.NewNopLogger())
	if err != nil {
		return err
	}
	network.stop = func() {
		if err := n.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stop the node:", err)
		}
		if err := os.RemoveAll(home); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	return n.Start(context.Background())
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
