package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/viper"

	"github.com/starling-kv/starling/node"
)

// offlineCommands work on the data of a stopped node.
func offlineCommands(env *cliEnv) []*cobra.Command {
	return []*cobra.Command{newVerifyCmd(env), newInspectCmd(env), newCompactCmd(env), newRollbackCmd(env)}
}

// offlineConfig is the configuration of a home, or what holds without one where only `starlingd abci` has run on it.
func offlineConfig(env *cliEnv) (*node.Config, error) {
	v := viper.New() // without flags: those of these commands may bear the name of a section
	node.BindEnvironment(v)
	config, err := node.LoadConfig(env.Home, v)
	if errors.Is(err, node.ErrNotInitialised) && exists(node.StateDir(filepath.Join(env.Home, "data"))) {
		config = &node.Config{Home: env.Home, CometBFT: node.DefaultCometBFTConfig(), App: node.DefaultAppConfig()}
		config.CometBFT.SetRoot(env.Home)
		return config, nil
	}
	return config, err
}

// offline runs work on a home until it is done or Ctrl-C comes.
func offline(cmd *cobra.Command, env *cliEnv, work func(ctx context.Context, config *node.Config) error) error {
	config, err := offlineConfig(env)
	if err != nil {
		return err
	}
	ctx, cancel := untilSignal(cmd.Context())
	defer cancel()
	err = work(ctx, config)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return errors.New("interrupted: the data is as good as before")
	}
	return err
}

// stages shows the progress of one thing after the other, each under its name.
type stages struct {
	env  *cliEnv
	unit string
	name string
	now  *progress
}

// at is told how far the thing of that name is.
func (s *stages) at(name string, done, total uint64) {
	if s.now == nil || s.name != name {
		s.end()
		fmt.Fprintln(s.env.Err, name)
		s.name, s.now = name, newProgress(s.env.Err, s.unit, count(total), 0)
	}
	s.now.at(min(count(done), s.now.total))
}

func (s *stages) end() {
	if s.now != nil {
		s.now.end()
		s.now = nil
	}
}

func count(n uint64) int { return int(min(n, math.MaxInt)) }

// byteCount is a number of bytes for people.
func byteCount(bytes uint64) string {
	value, unit := float64(bytes), "bytes"
	for _, next := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if value < 1024 {
			break
		}
		value, unit = value/1024, next
	}
	if unit == "bytes" {
		return fmt.Sprintf("%d bytes", bytes)
	}
	return fmt.Sprintf("%.1f %s", value, unit)
}
