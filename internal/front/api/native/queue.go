package native

import (
	"context"
	"net/http"

	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

const pathQueue = wire.Prefix + "/queue"

type queueIn struct {
	State  string `query:"state" enum:"pending,dead" default:"pending" doc:"pending: waiting or running; dead: failed permanently."`
	Cursor string `query:"cursor" maxLength:"100" doc:"The cursor of the previous page."`
	Limit  int    `query:"limit" minimum:"1" maximum:"999" default:"100" doc:"The maximum number of items."`
}

type queueOut struct {
	Body wire.Page[wire.Message]
}

type messageIn struct {
	ID string `path:"id" maxLength:"100" doc:"ID of the message."`
}

// queueHandlers serve the queue of scheduled actions.
type queueHandlers struct {
	manager *manager.Manager
	access  access
}

// addOperations adds the operations on the queue, which are for administrators.
func (h *queueHandlers) addOperations(r *registrar) {
	addOperation(r, newOperation(http.MethodGet, pathQueue, "listMessages", "List the scheduled actions"), h.listMessages)
	op := newOperation(http.MethodPost, pathQueue+"/{id}/retry", "retryMessage", "Retry a failed action at once")
	op.DefaultStatus = http.StatusNoContent
	addOperation(r, op, func(ctx context.Context, in *messageIn) (*struct{}, error) {
		if err := h.access.requireAdmin(ctx, "retry"); err != nil {
			return nil, err
		}
		return nil, h.manager.Messages().Retry(ctx, in.ID)
	})
	op = newOperation(http.MethodDelete, pathQueue+"/{id}", "dropMessage", "Remove a failed action")
	op.DefaultStatus = http.StatusNoContent
	addOperation(r, op, func(ctx context.Context, in *messageIn) (*struct{}, error) {
		if err := h.access.requireAdmin(ctx, "drop"); err != nil {
			return nil, err
		}
		return nil, h.manager.Messages().Drop(ctx, in.ID)
	})
}

func (h *queueHandlers) listMessages(ctx context.Context, in *queueIn) (*queueOut, error) {
	if err := h.access.requireAdmin(ctx, "list the queue"); err != nil {
		return nil, err
	}
	list, err := h.manager.Messages().List(ctx, queue.Filter{Dead: in.State == "dead", After: in.Cursor, Limit: in.Limit + 1})
	if err != nil {
		return nil, err
	}
	page := toPage(list, in.Limit, func(m queue.Message) string { return m.ID })
	out := wire.Page[wire.Message]{Items: make([]wire.Message, 0, len(page.Items)), Next: page.Next}
	for _, m := range page.Items {
		out.Items = append(out.Items, wire.Message{
			ID: m.ID, Sandbox: m.Sandbox, Kind: string(m.Kind), State: in.State, Due: m.Due, Attempts: m.Attempts,
			LastError: m.LastError, Metadata: m.Metadata, CreatedAt: m.CreatedAt,
		})
	}
	return &queueOut{out}, nil
}
