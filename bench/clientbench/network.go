package clientbench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/e2e/runner"
)

const (
	chainID = "bench"

	// startPatience is the time limit for the first blocks of a network, generous for a busy
	// machine.
	startPatience = 3 * time.Minute

	// stopGrace is the time limit for a clean stop of a node.
	stopGrace = 20 * time.Second

	starlingdPackage = "./cmd/starlingd"
)

// openState is a genesis state in which everybody may write below keyPrefix.
type openState struct {
	Admins []string `json:"admins"`
	Grants []grant  `json:"grants"`
}

type grant struct {
	Grantee string `json:"grantee"`
	Prefix  string `json:"prefix"`
}

// network is a network of running validators.
type network struct {
	dir        string
	processes  *runner.Processes
	validators []*runner.Home
	genesis    *types.GenesisDoc
}

// buildStarlingd builds the program in dir, unless a built one is given.
func buildStarlingd(ctx context.Context, given, dir string) (string, error) {
	if given != "" {
		return filepath.Abs(given)
	}
	root, err := runner.Root(ctx)
	if err != nil {
		return "", err
	}
	program := filepath.Join(dir, "starlingd")
	return program, runner.Build(ctx, root, starlingdPackage, program)
}

// startNetwork makes the homes of n validators in dir, starts them, and waits until all take part
// in consensus. edit changes the configuration of each.
func startNetwork(ctx context.Context, program, dir string, n int, edit func(*cfg.Config)) (*network, error) {
	net := &network{dir: dir, processes: runner.NewProcesses(ctx)}
	if err := net.start(program, n, edit); err != nil {
		return nil, errors.Join(err, net.stop())
	}
	return net, nil
}

func (net *network) start(program string, n int, edit func(*cfg.Config)) error {
	ctx, cancel := context.WithTimeout(net.processes.Context(), startPatience)
	defer cancel()
	for i := range n {
		name := fmt.Sprintf("validator-%d", i)
		dir := filepath.Join(net.dir, name)
		h, err := runner.NewHome(ctx, name, dir, program, "init", name, "--chain-id", chainID, "--home", dir)
		if err != nil {
			return err
		}
		net.validators = append(net.validators, h)
	}
	var err error
	net.genesis, err = runner.Genesis(net.validators, nil, chainID, openState{Admins: []string{}, Grants: []grant{{"*", keyPrefix}}})
	if err != nil {
		return err
	}
	for i, h := range net.validators {
		err := h.Configure(func(c *cfg.Config) {
			// Only one node of each pair dials: if both dial at once, both may fail, and wait for
			// seconds.
			c.P2P.PersistentPeers = runner.Peers(net.validators[:i]...)
			edit(c)
		})
		if err != nil {
			return err
		}
	}
	for _, h := range net.validators {
		h.Release()
		_, err := net.processes.Start(runner.Spec{Name: h.Name, Path: program, Args: []string{"start", "--home", h.Dir}, Log: h.Log()})
		if err != nil {
			return err
		}
	}
	// A node that is still looking for blocks accepts no transactions.
	for _, h := range net.validators {
		err := runner.Poll(ctx, h.Name+" to take part", func() bool {
			status, err := h.Status(ctx)
			return err == nil && !status.CatchingUp && status.Height >= 1
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// stop ends all nodes and removes their homes.
func (net *network) stop() error {
	err := net.processes.Stop(stopGrace)
	for _, h := range net.validators {
		h.Release()
	}
	return errors.Join(err, os.RemoveAll(net.dir))
}

// rpcs are the URLs of the validators.
func (net *network) rpcs() []string {
	urls := make([]string, len(net.validators))
	for i, h := range net.validators {
		urls[i] = h.RPC()
	}
	return urls
}
