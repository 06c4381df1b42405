package client

import (
	"context"
	"fmt"

	"github.com/starling-kv/starling/tx"
)

// upgradeKey is the key of the record of the last scheduled upgrade (docs/spec/records.md).
var upgradeKey = []byte{tx.Reserved, 'u'}

// ScheduledUpgrade is the record of the last scheduled upgrade, with the state from which it was
// read.
type ScheduledUpgrade struct {
	State
	// Upgrade is the last scheduled upgrade; nil: none. It is pending if its Height is above that
	// of the state; otherwise it is in force.
	Upgrade *tx.ScheduleUpgrade
}

// Pending reports whether the upgrade is not yet in force.
func (u *ScheduledUpgrade) Pending() bool {
	return u.Upgrade != nil && u.Upgrade.Height > uint64(u.Height)
}

// ScheduleUpgrade schedules a version of the state machine for the blocks above height. The
// client's account must be an admin.
func (c *Client) ScheduleUpgrade(ctx context.Context, version, height uint64, info string) (*TxResult, error) {
	return c.Submit(ctx, tx.NewScheduleUpgrade(version, height, info))
}

// CancelUpgrade cancels the pending upgrade to version. The client's account must be an admin.
func (c *Client) CancelUpgrade(ctx context.Context, version uint64) (*TxResult, error) {
	return c.Submit(ctx, tx.NewCancelUpgrade(version))
}

// ScheduledUpgrade reads the last scheduled upgrade, like Get.
func (c *Client) ScheduledUpgrade(ctx context.Context, options ...ReadOption) (*ScheduledUpgrade, error) {
	value, err := c.Get(ctx, upgradeKey, options...)
	if err != nil {
		return nil, err
	}
	scheduled := &ScheduledUpgrade{State: value.State}
	if !value.Found {
		return scheduled, nil
	}
	scheduled.Upgrade = new(tx.ScheduleUpgrade)
	if err := scheduled.Upgrade.Unmarshal(value.Value); err != nil {
		return nil, fmt.Errorf("client: the upgrade record of height %d does not decode: %w", value.Height, err)
	}
	return scheduled, nil
}
