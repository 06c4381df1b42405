package node

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/buildinfo"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/home"
	"github.com/starling-kv/starling/node/internal/nodetest"
	"github.com/starling-kv/starling/node/statuspage"
	"github.com/starling-kv/starling/statesync/view"
)

func TestStatusPageIsOffByDefault(t *testing.T) {
	require.Empty(t, config.DefaultApp().Status)
	home, _ := nodetest.Home(t, nil)
	require.Empty(t, nodetest.Load(t, home).App.Status)
	n := start(t, home, log.NewNopLogger())
	require.Nil(t, n.status)
	require.NoError(t, n.Stop())
}

func TestStatusOfANode(t *testing.T) {
	home, _ := nodetest.Home(t, func(o *home.InitOptions) {
		edit := o.Edit
		o.Edit = func(c *cfg.Config, a *config.App) {
			edit(c, a)
			a.Status.ListenAddress = "127.0.0.1:0"
		}
	})
	n := start(t, home, log.NewNopLogger())
	nodetest.Put(t, nodetest.RPC(t, home), "a", "1")
	page := "http://" + n.status.Addr()
	get := func(path string) (int, []byte) {
		resp, err := http.Get(page + path) //nolint:noctx // a test
		require.NoError(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, body
	}
	var s statuspage.Status
	nodetest.Until(t, "the node runs, and its second block shows the time between two", func() bool {
		code, body := get("/status.json")
		require.Equal(t, 200, code)
		require.NoError(t, json.Unmarshal(body, &s))
		return s.Phase == statuspage.PhaseRunning && s.Chain.BlockSeconds > 0
	})
	height, v := n.application.Latest()
	defer v.Release()
	require.GreaterOrEqual(t, height, s.Chain.Height)
	require.WithinDuration(t, time.Now(), s.Node.Started, time.Hour)
	s.Node.Started = time.Time{}
	nodetest.Until(t, "what the only validator has signed is shown", func() bool {
		nodetest.Put(t, nodetest.RPC(t, home), "b", strconv.Itoa(int(time.Now().UnixNano())))
		v := statusSource{n}.Status().Chain.Validator
		return v != nil && v.Power > 0 && v.LastHeight > 0 && v.LastSigned && v.Blocks > 1 && v.Missed == 0
	})
	require.Empty(t, s.Chain.PeerList)
	require.Positive(t, s.Chain.LastTxHeight)
	require.LessOrEqual(t, s.Chain.LastTxHeight, s.Chain.Height)
	require.WithinDuration(t, time.Now(), s.Chain.LastTxTime, time.Hour)
	require.Zero(t, s.Chain.WaitingTxs)
	require.Equal(t, statuspage.Node{
		Moniker: "test", ID: n.ID(), ChainID: "test-chain", Version: buildinfo.Read().Starling, CometBFT: buildinfo.Read().CometBFT, AppVersion: 1,
	}, s.Node)
	require.Positive(t, s.Chain.OldestHeight)
	require.LessOrEqual(t, s.Chain.OldestHeight, s.Chain.Height)
	require.Len(t, s.Chain.AppHash, 64)
	require.Equal(t, v.Root().Bytes, s.Tree.Bytes)
	require.Equal(t, int64(v.Len()), s.Tree.Keys)
	require.Positive(t, s.Tree.Height)
	require.Positive(t, s.Tree.MemoryBytes)
	require.Len(t, s.Caches, 2)
	require.True(t, s.Disk.Known)
	require.Positive(t, s.Disk.FreeBytes)
	require.Nil(t, s.Join, "it has not joined")
	for path, want := range map[string]int{"/": 200, "/chunks": 200, "/livez": 200, "/readyz": 200, "/other": 404} {
		code, _ := get(path)
		require.Equal(t, want, code, path)
	}
	require.NoError(t, n.Stop())
	_, err := net.Dial("tcp", strings.TrimPrefix(page, "http://"))
	require.Error(t, err, "nobody listens any more")
}

// The most relevant of a thousand peers are listed.
func TestListedPeers(t *testing.T) {
	peers := func(good, banned int) (list []view.Peer) {
		for i := range good + banned {
			p := view.Peer{Index: uint16(i + 1)}
			if i >= good {
				p.Reason = "a lie"
			}
			list = append(list, p)
		}
		return list
	}
	for _, c := range []struct{ good, banned, wantGood, wantBanned int }{
		{3, 2, 3, 2}, {1000, 1000, 100, 100}, {1000, 5, 195, 5}, {5, 1000, 5, 195}, {1000, 0, 200, 0}, {0, 1000, 0, 200}, {150, 60, 140, 60},
	} {
		good, banned := 0, 0
		for _, p := range listed(peers(c.good, c.banned)) {
			if p.Reason != "" {
				banned++
			} else {
				good++
			}
		}
		require.Equal(t, []int{c.wantGood, c.wantBanned}, []int{good, banned}, "%+v", c)
	}
}

// At the end of CometBFT's state sync, another CometBFT replaces the first. Between the two the
// databases are open again, but not those of the first.
func TestStatusBetweenTwoComets(t *testing.T) {
	home, _ := nodetest.Home(t, nil)
	n := start(t, home, log.NewNopLogger())
	nodetest.Put(t, nodetest.RPC(t, home), "a", "1")
	require.NoError(t, n.instance.Stop())
	_, err := n.databases.Open()
	require.NoError(t, err)
	require.Contains(t, n.Health().Line(false), "the node has not started yet")
	require.Equal(t, statuspage.PhaseStarting, statusSource{n}.Status().Phase)
	base, height := n.blockRange()
	require.Zero(t, base)
	require.Zero(t, height)

	require.NoError(t, n.instance.Make(t.Context()))
	require.NoError(t, n.instance.Start(n.ctx, &n.wg))
	nodetest.Until(t, "the node is ready", func() bool { return n.Health().Ready })
	require.NoError(t, n.Stop())
}
