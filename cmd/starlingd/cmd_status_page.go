package main

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

	"github.com/starling-kv/starling/catchup"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/statuspage"
)

// statusPath is where a status page answers programs.
const statusPath = "/status.json"

// otherwise asks the node of the home where RPC does not answer: its status page, which is served
// before CometBFT runs. The error wraps cause, and says what is known all the same.
func otherwise(ctx context.Context, env *cliEnv, cause error) (status, error) {
	noRPC, ok := errors.AsType[*noAnswerError](cause)
	if !ok || env.V.GetString("node") != "" { // that may be another machine's
		return status{}, cause
	}
	conf, bad := config.Load(env.Home, env.V)
	if bad != nil {
		if _, err := os.Stat(env.Home); errors.Is(err, fs.ErrNotExist) || errors.Is(bad, config.ErrNotInitialised) {
			cause = fmt.Errorf("%w\n%q is not a home folder, whose settings would name the address (--home names another one)", cause, env.Home)
		}
		return status{}, cause
	}
	if address := conf.Local().Status; address != "" {
		page, err := askStatusPage(ctx, address)
		if err != nil {
			return status{}, fmt.Errorf("%w\nnor from its status page, %w: that is served once the node has read its state (the node's log shows how far it is)", cause, err)
		}
		return statusOfPage(address, page, noRPC), nil
	}
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	if report, err := askHealth(ctx, conf); err == nil {
		return status{}, fmt.Errorf("%w\nthe node runs, and RPC does not answer yet: %s (its log shows how far it is; so does this command, if [status] laddr of app.toml is set)", cause, report.Line(false))
	}
	return status{}, cause
}

// askStatusPage returns what the status page at host:port says.
func askStatusPage(ctx context.Context, address string) (s statuspage.Status, err error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+statusPath, nil)
	if err != nil {
		return s, err
	}
	// no proxy: it is this machine's node
	answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		return s, fmt.Errorf("http://%s (status.laddr): %w", address, withoutURL(err))
	}
	defer answer.Body.Close()
	const most = 64 << 20
	err = json.NewDecoder(io.LimitReader(answer.Body, most)).Decode(&s)
	if err == nil && s.Phase == "" {
		err = errors.New("it names no phase")
	}
	if err != nil {
		return s, fmt.Errorf("%s answered with status %d: %w: is it another program's address?", request.URL, answer.StatusCode, err)
	}
	return s, nil
}

// withoutURL returns the cause of a failed request without the request, for an error that names the
// address itself.
func withoutURL(err error) error {
	var request *url.Error
	if errors.As(err, &request) {
		return request.Err
	}
	return err
}

// statusOfPage is the status of a node whose page at address says so. noRPC is why RPC did not.
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

// phaseLines describe a node whose RPC does not answer, in BoR's states where it has one
// (docs/papers.md).
func (s status) phaseLines(line func(name string, value any)) {
	switch {
	case s.CatchUp != nil && s.CatchUp.State == string(catchup.CatchUp):
		line("phase", "catch_up: fetches blocks and executes them, before CometBFT runs")
		catchUpLines(line, *s.CatchUp)
	case s.Phase == statuspage.PhaseJoining && s.Join != nil:
		line("phase", "last_irr_catch_up: fetches the state, before the blocks after it")
		joinLines(line, *s.Join)
	case s.Phase == statuspage.PhaseRunning:
		line("phase", "normal: follows consensus")
	case s.Phase == statuspage.PhaseCatchingUp:
		line("phase", "CometBFT fetches blocks")
	case s.Phase == statuspage.PhaseStateSync:
		line("phase", "CometBFT's own state sync")
	case s.Phase == statuspage.PhaseStarting:
		line("phase", "starting: opens its databases, executes blocks that it has, or waits for the genesis time")
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
		line("progress", "looks for peers and a snapshot")
	} else {
		line("progress", fmt.Sprintf("%d of %s, %s of %s, of the state of height %d (%s)", j.ChunksDone, counted(j.Chunks, "chunk"),
			humanize.IBytes(min(j.BytesDone, j.Bytes)), humanize.IBytes(j.Bytes), j.Height, harmless(j.Phase)))
		line("speed", humanize.IBytes(j.Rate)+"/s")
	}
	line("time", elapsed(j.Seconds, j.SecondsLeft))
	line("peers", peersAndBanned(j.Connected, j.Banned))
}

// elapsed says how long something takes; left 0: that is not known.
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

// noAnswerError is that of a node whose RPC does not answer, or not as it should.
type noAnswerError struct {
	address string
	cause   error
}

func (e *noAnswerError) Error() string {
	return fmt.Sprintf("%s: is the node running there? (--node names another address)", e.short())
}

func (e *noAnswerError) Unwrap() error { return e.cause }

// short leaves out what to do.
func (e *noAnswerError) short() string {
	return fmt.Sprintf("no answer from %s: %v", e.address, e.cause)
}
