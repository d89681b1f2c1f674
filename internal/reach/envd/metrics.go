package envd

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/sandpit-dev/sandpit"
)

const maxMetrics = 64 << 10 // bytes

// DiskUsed returns how many bytes the sandbox's root file system stores, as the guest
// reports.
func (c *Client) DiskUsed(ctx context.Context) (int64, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/metrics", http.NoBody)
	if err != nil {
		return 0, err
	}
	res, err := doRequest(c.http, r)
	if err != nil {
		return 0, fmt.Errorf("measure the disk: %w", err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, maxMetrics))
	if err != nil {
		return 0, fmt.Errorf("measure the disk: %w", transportError(ctx, err))
	}
	var metrics struct {
		Used int64 `json:"disk_used"`
	}
	if err := json.Unmarshal(data, &metrics); err != nil || metrics.Used < 0 {
		return 0, sandpit.Errorf(sandpit.Internal, "measure the disk: invalid response of the guest")
	}
	return metrics.Used, nil
}
