package client

import (
	"context"
	"fmt"

	"github.com/starling-kv/starling/tx"
)

// upgradeKey is the key of the upgrade that was scheduled last (docs/spec/records.md).
var upgradeKey = []byte{tx.Reserved, 'u'}

// ScheduledUpgrade is what a chain has on record about its app version.
type ScheduledUpgrade struct {
	State
	// Upgrade is the one that was scheduled last; nil: none. It is to come if its Height is above that of the state, else it has begun.
	Upgrade *tx.ScheduleUpgrade
}

// Pending tells whether the upgrade is still to come.
func (u *ScheduledUpgrade) Pending() bool {
	return u.Upgrade != nil && u.Upgrade.Height > uint64(u.Height)
}

// ScheduleUpgrade has blocks above height executed by version of the state machine. The client's account must be an admin.
func (c *Client) ScheduleUpgrade(ctx context.Context, version, height uint64, info string) (*TxResult, error) {
	return c.Submit(ctx, tx.NewScheduleUpgrade(version, height, info))
}

// CancelUpgrade takes back the upgrade to version, which is still to come. The client's account must be an admin.
func (c *Client) CancelUpgrade(ctx context.Context, version uint64) (*TxResult, error) {
	return c.Submit(ctx, tx.NewCancelUpgrade(version))
}

// ScheduledUpgrade reads which upgrade was scheduled last, like Get.
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
