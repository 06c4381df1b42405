package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"

	rpchttp "github.com/cometbft/cometbft/rpc/client/http"
	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/node"
	"github.com/starling-kv/starling/statuspage"
)

// statusTimeout bounds the requests to one node.
const statusTimeout = 10 * time.Second

// status is what `starlingd status` reports about one node.
type status struct {
	Address     string            `json:"address"`
	ChainID     string            `json:"chain_id"`
	Moniker     string            `json:"moniker"`
	NodeID      string            `json:"node_id"`
	Version     string            `json:"version"` // of starlingd
	AppVersion  uint64            `json:"app_version"`
	Height      int64             `json:"height"` // of the last block
	BlockTime   time.Time         `json:"block_time"`
	AppHeight   int64             `json:"app_height"`   // of the application's state
	AppHash     string            `json:"app_hash"`     // of that state
	OldestState int64             `json:"oldest_state"` // lowest for queries; 0: unknown
	CatchingUp  bool              `json:"catching_up"`
	Peers       int               `json:"peers"`
	VotingPower int64             `json:"voting_power"` // of this node
	Validators  []statusValidator `json:"validators"`
	// Storage is where the storage nodes stand that keep the state; nil: the node has it itself.
	Storage *statuspage.Sharded `json:"storage,omitempty"`
	// NoRPC is why RPC did not answer: then the rest is what the node's status page says, Height
	// that of the state, and the validators are not known. Empty: RPC did, and what follows is not
	// set.
	NoRPC   string              `json:"no_rpc,omitempty"`
	Phase   string              `json:"phase,omitempty"` // one of package statuspage's
	Join    *statuspage.Join    `json:"join,omitempty"`
	CatchUp *statuspage.CatchUp `json:"catch_up,omitempty"`
}

type statusValidator struct {
	Address string `json:"address"`
	PubKey  string `json:"pub_key"`
	Power   int64  `json:"power"`
}

func newStatusCmd(env *cliEnv) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show height, state and validators of a running node",
		Long: `Shows what a running node says of itself. RPC does not answer while a node joins, or
fetches blocks before CometBFT runs; then the status page of this home's node is asked
([status] laddr of app.toml), which says how far it is. Exit status 0: the node answered,
there or by RPC; "starlingd health" reports whether it is ready.`,
		Example: `  starlingd status
  starlingd status --node http://127.0.0.1:26657 --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var errs []error
			for _, address := range env.NodeAddrs() {
				s, err := askStatus(cmd.Context(), address)
				if err != nil {
					s, err = otherwise(cmd.Context(), env, err)
				}
				if err != nil {
					errs = append(errs, err)
					continue
				}
				if env.JSON() {
					err = writeJSON(env.Out, s)
				} else {
					err = s.write(env.Out)
				}
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		},
	}
}

func askStatus(ctx context.Context, address string) (status, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	failed := func(err error) (status, error) {
		return status{}, &noAnswerError{address, withoutURL(err)}
	}
	rpc, err := client.NewHTTP(address)
	if err != nil {
		return failed(err)
	}
	node, err := rpc.Status(ctx)
	if err != nil {
		return failed(err)
	}
	info, err := rpc.ABCIInfo(ctx)
	if err != nil {
		return failed(err)
	}
	net, err := rpc.NetInfo(ctx)
	if err != nil {
		return failed(err)
	}
	s := status{
		Address: address, ChainID: node.NodeInfo.Network, Moniker: node.NodeInfo.Moniker, NodeID: string(node.NodeInfo.ID()),
		Version: info.Response.Version, AppVersion: info.Response.AppVersion, Height: node.SyncInfo.LatestBlockHeight, BlockTime: node.SyncInfo.LatestBlockTime,
		AppHeight: info.Response.LastBlockHeight, AppHash: hex.EncodeToString(info.Response.LastBlockAppHash),
		CatchingUp: node.SyncInfo.CatchingUp, Peers: net.NPeers, VotingPower: node.ValidatorInfo.VotingPower,
		Validators: []statusValidator{},
	}
	if s.OldestState, err = oldestState(ctx, rpc); err != nil {
		return failed(err)
	}
	if s.Storage, err = storageStatus(ctx, rpc); err != nil {
		return failed(err)
	}
	if s.Height == 0 {
		return s, nil // no validator set is stored before the first block
	}
	const perPage = 100 // rpc/core, maxPerPage
	for page := 1; ; page++ {
		limit := perPage
		answer, err := rpc.Validators(ctx, nil, &page, &limit)
		if err != nil {
			return failed(err)
		}
		for _, v := range answer.Validators {
			if v == nil || v.PubKey == nil {
				return failed(errors.New("it names a validator without a key"))
			}
			s.Validators = append(s.Validators, statusValidator{v.Address.String(), hex.EncodeToString(v.PubKey.Bytes()), v.VotingPower})
		}
		if len(answer.Validators) < perPage || len(s.Validators) >= answer.Total {
			return s, nil
		}
	}
}

// oldestState returns the lowest height that the node answers queries at, 0 if it does not say.
func oldestState(ctx context.Context, rpc *rpchttp.HTTP) (int64, error) {
	answer, err := rpc.ABCIQuery(ctx, app.PathHeights, nil)
	if err != nil {
		return 0, err
	}
	var heights app.HeightsInfo
	if answer.Response.Code == 0 { // not JSON: it does not say
		_ = json.Unmarshal(answer.Response.Value, &heights)
	}
	return heights.Oldest, nil
}

// storageStatus returns where the storage nodes stand of a node whose state they keep; nil: it has
// the state itself, or does not say.
func storageStatus(ctx context.Context, rpc *rpchttp.HTTP) (*statuspage.Sharded, error) {
	answer, err := rpc.ABCIQuery(ctx, node.PathStorage, nil)
	if err != nil {
		return nil, err
	}
	storage := new(statuspage.Sharded)
	if answer.Response.Code != 0 || json.Unmarshal(answer.Response.Value, storage) != nil {
		return nil, nil //nolint:nilerr // it does not say
	}
	return storage, nil
}

func (s status) write(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	line := func(name string, value any) { fmt.Fprintf(table, "%s\t%v\n", name, value) }
	line("node", fmt.Sprintf("%s (%s) at %s", harmless(s.Moniker), harmless(s.NodeID), s.Address))
	line("chain", harmless(s.ChainID))
	line("version", harmless(s.Version))
	line("app version", s.AppVersion)
	if s.NoRPC != "" {
		s.writePage(line)
		return table.Flush()
	}
	line("height", s.Height)
	if s.Height > 0 {
		line("block time", s.BlockTime.UTC().Format(time.RFC3339))
	}
	line("state", fmt.Sprintf("height %d, app hash %s", s.AppHeight, s.AppHash))
	if s.OldestState > 0 {
		line("queries", fmt.Sprintf("answered from height %d on", s.OldestState))
	}
	line("catching up", map[bool]string{true: "yes", false: "no"}[s.CatchingUp])
	line("peers", s.Peers)
	line("voting power", s.VotingPower)
	if s.Storage != nil {
		writeStorage(line, *s.Storage)
	}
	for i, v := range s.Validators {
		name := ""
		if i == 0 {
			name = fmt.Sprintf("validators (%d)", len(s.Validators))
		}
		line(name, fmt.Sprintf("%s  key %s  power %d", v.Address, v.PubKey, v.Power))
	}
	return table.Flush()
}

// writePage shows what comes from the status page.
func (s status) writePage(line func(name string, value any)) {
	line("RPC", harmless(s.NoRPC))
	s.phaseLines(line)
	if s.AppHeight > 0 {
		line("state", fmt.Sprintf("height %d, app hash %s", s.AppHeight, harmless(s.AppHash)))
	}
	if s.Storage != nil {
		writeStorage(line, *s.Storage)
	}
}

// harmless removes control characters, so that a name chosen by a node cannot control the terminal.
func harmless(s string) string {
	if printable([]byte(s)) {
		return s
	}
	return strconv.Quote(s)
}
