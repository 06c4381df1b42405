package cli

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
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/statuspage"
)

// statusTimeout limits the requests to one node. Tests change it.
var statusTimeout = 10 * time.Second

// status is the report of `starlingd status` about one node.
type status struct {
	Address     string            `json:"address"`
	ChainID     string            `json:"chain_id"`
	Moniker     string            `json:"moniker"`
	NodeID      string            `json:"node_id"`
	Version     string            `json:"version"` // starlingd's
	AppVersion  uint64            `json:"app_version"`
	Height      int64             `json:"height"` // last block
	BlockTime   time.Time         `json:"block_time"`
	AppHeight   int64             `json:"app_height"`   // height of the application's state
	AppHash     string            `json:"app_hash"`     // app hash of that state
	OldestState int64             `json:"oldest_state"` // lowest height for queries; 0: unknown
	CatchingUp  bool              `json:"catching_up"`
	Peers       int               `json:"peers"`
	VotingPower int64             `json:"voting_power"` // this node's
	Validators  []statusValidator `json:"validators"`
	// Storage is the progress of the storage nodes that keep the state; nil: the node keeps the
	// state itself.
	Storage *statuspage.Sharded `json:"storage,omitempty"`
	// NoRPC is the reason why RPC did not answer; "": RPC answered, and the fields below are not
	// set. Otherwise the report comes from the node's status page: Height is that of the state, and
	// the validators are unknown.
	NoRPC   string              `json:"no_rpc,omitempty"`
	Phase   string              `json:"phase,omitempty"` // a phase of package statuspage
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
		Long: `Shows the status of a running node. RPC does not answer while a node joins or fetches
blocks before CometBFT runs; then the command shows the progress from this home's status
page ([status] laddr of app.toml). Exit status 0: the node answered, by RPC or by its
status page; "starlingd health" checks whether it is ready.`,
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
		return status{}, config.Invalid(err)
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
				return failed(errors.New("the node listed a validator without a key"))
			}
			s.Validators = append(s.Validators, statusValidator{v.Address.String(), hex.EncodeToString(v.PubKey.Bytes()), v.VotingPower})
		}
		if len(answer.Validators) < perPage || len(s.Validators) >= answer.Total {
			return s, nil
		}
	}
}

// oldestState returns the lowest height at which the node answers queries, 0 if the node does not
// report it.
func oldestState(ctx context.Context, rpc *rpchttp.HTTP) (int64, error) {
	answer, err := rpc.ABCIQuery(ctx, app.PathHeights, nil)
	if err != nil {
		return 0, err
	}
	var heights app.HeightsInfo
	if answer.Response.Code == 0 { // not JSON: not reported
		_ = json.Unmarshal(answer.Response.Value, &heights)
	}
	return heights.Oldest, nil
}

// storageStatus returns the progress of the storage nodes of a sharded node; nil: the node keeps
// the state itself, or does not report it.
func storageStatus(ctx context.Context, rpc *rpchttp.HTTP) (*statuspage.Sharded, error) {
	answer, err := rpc.ABCIQuery(ctx, node.PathStorage, nil)
	if err != nil {
		return nil, err
	}
	storage := new(statuspage.Sharded)
	if answer.Response.Code != 0 || json.Unmarshal(answer.Response.Value, storage) != nil {
		return nil, nil //nolint:nilerr // not reported
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
		line("queries", fmt.Sprintf("from height %d", s.OldestState))
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

// writePage prints the data of the status page.
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
