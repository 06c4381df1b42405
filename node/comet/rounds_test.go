package comet

import (
	"testing"
	"testing/synctest"
	"time"

	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"
)

// A block is pending from its first proposal on, through all rounds, until the next height. The
// pause between blocks, and the wait for a first transaction, are not.
func TestRounds(t *testing.T) {
	begin := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	var r Rounds
	require.Zero(t, r.Pending())
	for i, c := range []struct {
		height int64
		round  int32
		step   string
		since  int // index of the step since which it is pending; -1: not pending
	}{
		{7, 0, "RoundStepNewHeight", -1},
		{7, 0, "RoundStepNewRound", -1},
		{7, 0, "RoundStepPropose", 2},
		{7, 0, "RoundStepPrevote", 2},
		{7, 1, "RoundStepNewRound", 2},
		{7, 1, "RoundStepPropose", 2},
		{7, 1, "RoundStepCommit", 2},
		{8, 0, "RoundStepNewHeight", -1},
		{8, 0, "RoundStepPrevote", 8},
	} {
		r.step(cmttypes.EventDataRoundState{Height: c.height, Round: c.round, Step: c.step}, begin.Add(time.Duration(i)*time.Second))
		want := Pending{Height: c.height, Round: c.round}
		if c.since >= 0 {
			want.Since = begin.Add(time.Duration(c.since) * time.Second)
		}
		require.Equal(t, want, r.Pending(), "step %d", i)
	}
}

// The steps come from CometBFT's bus. The subscription survives a burst of more steps than fit, and
// the bus may end before the subscription.
func TestRoundsFollowABus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r Rounds
		bus := cmttypes.NewEventBus()
		require.NoError(t, bus.Start())
		stop, err := r.follow(bus)
		require.NoError(t, err)
		publish := func(height int64) {
			require.NoError(t, bus.PublishEventNewRoundStep(cmttypes.EventDataRoundState{Height: height, Step: "RoundStepPropose"}))
		}
		publish(1)
		synctest.Wait()
		require.EqualValues(t, 1, r.Pending().Height)
		r.mu.Lock() // blocks handling of steps
		for range 2 * roundsBacklog {
			publish(2)
		}
		r.mu.Unlock()
		synctest.Wait()
		publish(3)
		synctest.Wait()
		require.EqualValues(t, 3, r.Pending().Height)
		require.NoError(t, bus.Stop())
		stop()
		stop()
	})
}
