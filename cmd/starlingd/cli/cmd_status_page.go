package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/statuspage"
	"github.com/starling-kv/starling/statesync/catchup"
)

// statusPath is the path of the status page's JSON.
const statusPath = "/status.json"

// otherwise queries the node of the home if RPC does not answer: its status page, which is served
// before CometBFT runs. The error wraps cause and adds what is known.
func otherwise(ctx context.Context, env *cliEnv, cause error) (status, error) {
	noRPC, ok := errors.AsType[*noAnswerError](cause)
	if !ok || env.V.GetString("node") != "" { // --node may name another machine
		return status{}, cause
	}
	conf, bad := config.Load(env.Home, env.V)
	if bad != nil {
		if _, err := os.Stat(env.Home); errors.Is(err, fs.ErrNotExist) || errors.Is(bad, config.ErrNotInitialised) {
			cause = fmt.Errorf("%w\n%q is not a home folder, so its settings cannot be read (use --home)", cause, env.Home)
		}
		return status{}, cause
	}
	if address := conf.Local().Status; address != "" {
		page, err := askStatusPage(ctx, address)
		if err != nil {
			return status{}, fmt.Errorf("%w\nnor from its status page, %w: it is served once the node has read its state (see the node's log for its progress)", cause, err)
		}
		return statusOfPage(address, page, noRPC), nil
	}
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	if report, err := askHealth(ctx, conf); err == nil {
		return status{}, fmt.Errorf("%w\nthe node runs, but RPC does not answer yet: %s (see the node's log for its progress, or set [status] laddr in app.toml for this command to show it)", cause, report.Line(false))
	}
	return status{}, cause
}

// askStatusPage returns the status that the page at host:port reports.
func askStatusPage(ctx context.Context, address string) (s statuspage.Status, err error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+statusPath, nil)
	if err != nil {
		return s, err
	}
	// no proxy: the node runs on this machine
	answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		return s, fmt.Errorf("http://%s (status.laddr): %w", address, withoutURL(err))
	}
	defer answer.Body.Close()
	const most = 64 << 20
	err = json.NewDecoder(io.LimitReader(answer.Body, most)).Decode(&s)
	if err == nil && s.Phase == "" {
		err = errors.New("no phase in the response")
	}
	if err != nil {
		return s, fmt.Errorf("%s returned status %d: %w: is this another program's address?", request.URL, answer.StatusCode, err)
	}
	return s, nil
}

// withoutURL returns the cause of a failed request without the request's URL, for an error that has
// the address already.
func withoutURL(err error) error {
	var request *url.Error
	if errors.As(err, &request) {
		return request.Err
	}
	return err
}

// statusOfPage returns the status that the page at address reports. noRPC is the reason why RPC did
// not answer.
func statusOfPage(address string, page statuspage.Status, noRPC *noAnswerError) status {
	s := status{
		Address: "http://" + address, NoRPC: noRPC.short(), Phase: page.Phase, Join: page.Join, CatchUp: page.CatchUp,
		ChainID: page.Node.ChainID, Moniker: page.Node.Moniker, NodeID: page.Node.ID, Version: page.Node.Version, AppVersion: page.Node.AppVersion,
		Height: page.Chain.Height, BlockTime: page.Chain.BlockTime, AppHeight: page.Chain.Height, AppHash: page.Chain.AppHash, OldestState: page.Chain.OldestHeight,
		CatchingUp: page.Phase != statuspage.PhaseRunning, Peers: page.Chain.Peers, Validators: []statusValidator{}, Storage: page.Sharded,
	}
	if v := page.Chain.Validator; v != nil {
		s.VotingPower = int64(v.Power)
	}
	return s
}

// phaseLines describes a node whose RPC does not answer.
func (s status) phaseLines(line func(name string, value any)) {
	switch {
	case s.CatchUp != nil && s.CatchUp.State == string(catchup.CatchUp):
		line("phase", "fetching and executing blocks, before CometBFT starts")
		catchUpLines(line, *s.CatchUp)
	case s.Phase == statuspage.PhaseJoining && s.Join != nil:
		line("phase", "fetching the state, before the blocks after it")
		joinLines(line, *s.Join)
	case s.Phase == statuspage.PhaseRunning:
		line("phase", "following consensus")
	case s.Phase == statuspage.PhaseCatchingUp:
		line("phase", "CometBFT's block sync")
	case s.Phase == statuspage.PhaseStateSync:
		line("phase", "CometBFT's own state sync")
	case s.Phase == statuspage.PhaseStarting:
		line("phase", "starting: opening databases, replaying local blocks, or waiting for the genesis time")
	default:
		line("phase", harmless(s.Phase))
	}
}

func catchUpLines(line func(name string, value any), c statuspage.CatchUp) {
	line("progress", fmt.Sprintf("block %d of %d", c.Height, c.Target))
	line("speed", fmt.Sprintf("%.1f blocks/s, %s/s", c.BlockRate, humanize.IBytes(c.Rate)))
	line("time", elapsed(c.Seconds, c.SecondsLeft))
	line("peers", peersAndBanned(c.Connected, c.Banned))
}

func joinLines(line func(name string, value any), j statuspage.Join) {
	if j.Chunks == 0 {
		line("progress", "looking for peers and a snapshot")
	} else {
		line("progress", fmt.Sprintf("%d of %s, %s of %s, state at height %d (%s)", j.ChunksDone, counted(j.Chunks, "chunk"),
			humanize.IBytes(min(j.BytesDone, j.Bytes)), humanize.IBytes(j.Bytes), j.Height, harmless(j.Phase)))
		line("speed", humanize.IBytes(j.Rate)+"/s")
	}
	line("time", elapsed(j.Seconds, j.SecondsLeft))
	line("peers", peersAndBanned(j.Connected, j.Banned))
}

// elapsed describes the elapsed and the remaining time; left 0: unknown.
func elapsed(seconds, left float64) string {
	rounded := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)).Round(time.Second) }
	text := fmt.Sprintf("%v so far", rounded(seconds))
	if left > 0 {
		text += fmt.Sprintf(", about %v left", rounded(left))
	}
	return text
}

func peersAndBanned(connected, banned int) string {
	if banned == 0 {
		return fmt.Sprint(connected)
	}
	return fmt.Sprintf("%d, %d banned", connected, banned)
}

// noAnswerError reports that a node's RPC did not answer, or answered incorrectly.
type noAnswerError struct {
	address string
	cause   error
}

func (e *noAnswerError) Error() string {
	return fmt.Sprintf("%s: is the node running? (a node that joins answers on its [status] laddr only; use --node for another address)", e.short())
}

func (e *noAnswerError) Unwrap() error { return e.cause }

// short omits the hint.
func (e *noAnswerError) short() string {
	return fmt.Sprintf("no response from %s: %v", e.address, e.cause)
}
