package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/viper"

	"github.com/starling-kv/starling/node/config"
)

// offlineConfig returns the configuration of a home, or the defaults if the home has only been used
// by `starlingd abci`.
func offlineConfig(env *cliEnv) (*config.Config, error) {
	v := viper.New() // without flags: these commands have flags named like a section
	config.BindEnvironment(v)
	conf, err := config.Load(env.Home, v)
	if errors.Is(err, config.ErrNotInitialised) && exists(config.StateDir(filepath.Join(env.Home, "data"))) {
		conf = &config.Config{Home: env.Home, CometBFT: config.DefaultCometBFT(), App: config.DefaultApp()}
		conf.CometBFT.SetRoot(env.Home)
		return conf, nil
	}
	return conf, err
}

// offline runs work on a home. Ctrl-C cancels its context.
func offline(cmd *cobra.Command, env *cliEnv, work func(ctx context.Context, config *config.Config) error) error {
	config, err := offlineConfig(env)
	if err != nil {
		return err
	}
	ctx, cancel := untilSignal(cmd.Context())
	defer cancel()
	err = work(ctx, config)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return errors.New("interrupted: the data are intact")
	}
	return err
}

// stages shows the progress of several named steps, one after another.
type stages struct {
	env  *cliEnv
	unit string
	name string
	now  *progress
}

// at sets the progress of the named step.
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
