package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/node"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/health"
)

// healthTimeout limits the request to the node of this home: a node that takes longer is not
// healthy. Tests change it.
var healthTimeout = 3 * time.Second

func newHealthCmd(env *cliEnv) *cobra.Command {
	var live bool
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Check whether the node of this home is ready, for supervisors: exit status 0 or 1",
		Long: `Checks whether the node of the home folder is ready: it follows the chain, its latest
block is recent, and its disk has free space. With --live it only checks whether the node
is live: it runs, and its consensus has not failed, so there is no reason to restart it.
A node that joins is live but not ready.

It queries the status server at [status] laddr of app.toml (GET /readyz, /livez) if that
is set, otherwise RPC. RPC reports less: it answers even after consensus has failed.`,
		Example: `  starlingd health
  starlingd health --live --home ~/.starling`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := config.Load(env.Home, env.V)
			if err != nil { // no exit status of its own: supervisors expect 0 or 1
				return errors.New("not live: " + err.Error())
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), healthTimeout)
			defer cancel()
			report, err := askHealth(ctx, config)
			if err != nil {
				return err
			}
			if env.JSON() {
				if err := writeJSON(env.Out, report); err != nil {
					return err
				}
			}
			if good := report.Ready || live && report.Live; !good {
				return errors.New(report.Line(live))
			}
			if !env.JSON() {
				fmt.Fprintln(env.Out, report.Line(live))
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&live, "live", false, "check only whether the node is live")
	return cmd
}

func askHealth(ctx context.Context, config *config.Config) (health.Report, error) {
	local := config.Local()
	if local.Status != "" {
		return askStatusServer(ctx, local.Status)
	}
	facts := node.HealthFacts(config)
	err := askRPC(ctx, local.RPC, &facts)
	if err == nil {
		return health.Of(facts), nil
	}
	for _, address := range local.Otherwise { // while a node joins, it serves no RPC
		if conn, refused := new(net.Dialer).DialContext(ctx, "tcp", address); refused == nil {
			_ = conn.Close()
			facts.Joining = "RPC is not served yet"
			return health.Of(facts), nil
		}
	}
	return health.Report{}, fmt.Errorf("not live: %w", err)
}

// askStatusServer returns the node's own report.
func askStatusServer(ctx context.Context, address string) (report health.Report, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+health.PathReady, nil)
	if err != nil {
		return report, err
	}
	// no proxy: the node runs on this machine
	answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		return report, fmt.Errorf("not live: %w", err)
	}
	defer answer.Body.Close()
	const most = 1 << 20
	if err := json.NewDecoder(io.LimitReader(answer.Body, most)).Decode(&report); err != nil {
		return report, fmt.Errorf("%s returned status %d and no health report: is this another program's address? %w", request.URL, answer.StatusCode, err)
	}
	return report, nil
}

// askRPC adds what RPC reports.
func askRPC(ctx context.Context, address string, facts *health.Facts) error {
	rpc, err := client.NewHTTP(address)
	if err != nil {
		return err
	}
	status, err := rpc.Status(ctx)
	if err != nil {
		return err
	}
	facts.Started, facts.CatchingUp = true, status.SyncInfo.CatchingUp
	facts.Height, facts.BlockTime = status.SyncInfo.LatestBlockHeight, status.SyncInfo.LatestBlockTime
	return nil
}
