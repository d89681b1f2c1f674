package manager

import (
	"context"
	"log/slog"
)

// mustShare reports whether an owner has to leave room for others: it is no administrator's,
// and others have keys or sandboxes. For administrators without sandboxes no room is left,
// as they can make some. The server itself leaves none, because its pools give way.
func (c *core) mustShare(owner string) bool {
	if owner == "" {
		return false
	}
	ctx, cancel := context.WithTimeout(c.loops.ctx, storeLimit)
	defer cancel()
	owners, err := c.o.KeyOwners(ctx)
	if err != nil {
		c.log.WarnContext(ctx, "manager: cannot list owners of keys; assuming several owners", slog.Any("error", err))
		return true
	}
	if owners[owner] {
		return false
	}
	for other, admin := range owners {
		if other != owner && !admin {
			return true
		}
	}
	return c.quota.hasOthers(owner)
}
