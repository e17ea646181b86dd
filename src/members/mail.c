/* SPDX-License-Identifier: Apache-2.0 */
/* Between the owner and the thread: waking the one, failing the other. */
#include "gather.h"
#include "impl.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

void msdu__mail_wake(struct msdu__members *members)
{
    uint64_t one = 1;
    while (write(members->mail.wake_fd, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
}

void msdu__mail_fail(struct msdu__members *members, msdu_status status, const char *text)
{
    struct msdu__mail *mail = &members->mail;
    msdu__gather_stop(&members->standby.council, MSDU__STOP_NONE);
    (void)pthread_mutex_lock(&mail->lock);
    if (mail->status == MSDU_OK) {
        mail->status = status;
        (void)snprintf(mail->text, sizeof(mail->text), "%s", text);
    }
    (void)pthread_cond_broadcast(&mail->changed);
    (void)pthread_mutex_unlock(&mail->lock);
}
