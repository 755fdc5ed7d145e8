....................................                                     [100%]
================================ processor time ================================
    74.5 s  all 36 tests
    48.7 s  tests/end_to_end (22 tests)
    25.9 s  tests/audit (14 tests)
the 36 slowest:
     9.8 s  tests/end_to_end/test_canary_run.py::test_gradient_norms_are_those_of_one_backward_a_record_at_the_base_model
     4.9 s  tests/end_to_end/test_data_defenses.py::test_a_run_with_copies_out_and_a_cap_trains_on_what_is_left
     4.5 s  tests/audit/test_control.py::test_canary_rows_without_effect_are_noticed_as_often_as_is_said[sizes2]
     4.3 s  tests/end_to_end/test_data_defenses.py::test_a_de_identified_run_trains_on_no_listed_name
     4.2 s  tests/audit/test_control.py::test_canary_rows_without_effect_are_noticed_as_often_as_is_said[sizes0]
     3.7 s  tests/end_to_end/test_canary_run.py::test_report_and_findings_show_the_groups_and_leave_no_hole_without_them
     3.4 s  tests/end_to_end/test_canary_run.py::test_canaries_that_training_does_not_touch_are_not_told_apart
     3.4 s  tests/end_to_end/test_canary_run.py::test_a_coin_per_user_keeps_the_guarantee_of_a_private_run
     3.3 s  tests/end_to_end/test_canary_run.py::test_a_new_run_of_the_same_config_has_the_same_canaries_and_other_coins
     3.2 s  tests/end_to_end/test_data_defenses.py::test_canary_users_texts_are_counted_after_the_cap
     3.2 s  tests/end_to_end/test_canary_run.py::test_a_resumed_run_keeps_its_canaries_and_ends_with_the_same_weights
     2.8 s  tests/end_to_end/test_data_defenses.py::test_training_stops_early_and_resumes_as_stopped
     2.6 s  tests/audit/test_control.py::test_canary_rows_without_effect_are_noticed_as_often_as_is_said[sizes1]
     2.6 s  tests/end_to_end/test_data_defenses.py::test_copies_across_users_void_a_user_level_epsilon[user-True]
     2.0 s  tests/audit/test_control.py::test_a_private_training_that_learns_little_does_not_fail[0.55-0.6]
     1.9 s  tests/end_to_end/test_data_defenses.py::test_copies_across_users_void_a_user_level_epsilon[corpus-False]
     1.8 s  tests/audit/test_control.py::test_a_private_training_that_learns_little_does_not_fail[0.51-0.5]
     1.7 s  tests/audit/test_control.py::test_a_private_training_that_learns_little_does_not_fail[0.7-0.9]
     1.7 s  tests/audit/test_control.py::test_a_private_training_that_learns_little_does_not_fail[0.5-0.5]
     1.6 s  tests/audit/test_control.py::test_rows_that_were_learned_alike_fail_in_one_audit_of_a_hundred_at_most[0.9]
     1.6 s  tests/audit/test_control.py::test_rows_that_were_learned_alike_fail_in_one_audit_of_a_hundred_at_most[0.99]
     1.4 s  tests/audit/test_control.py::test_rows_that_were_learned_alike_fail_in_one_audit_of_a_hundred_at_most[0.5]
     1.3 s  tests/audit/test_control.py::test_rows_that_were_learned_alike_fail_in_one_audit_of_a_hundred_at_most[0.7]
     1.2 s  tests/end_to_end/test_data_defenses.py::test_a_check_asks_the_source_of_names_for_everything
     1.2 s  tests/audit/test_control.py::test_rows_that_were_learned_alike_fail_in_one_audit_of_a_hundred_at_most[0.55]
     0.2 s  tests/end_to_end/test_canary_run.py::test_a_substring_longer_than_every_document_says_how_many_users_have_one_that_long
     0.2 s  tests/end_to_end/test_canary_run.py::test_users_whose_place_a_canary_took_are_in_nothing
     0.2 s  tests/end_to_end/test_canary_run.py::test_the_trainer_is_handed_included_canaries_and_no_text_of_the_others
     0.2 s  tests/audit/test_control.py::test_outcomes_follow_from_what_was_learned
     0.1 s  tests/end_to_end/test_canary_run.py::test_what_cannot_be_planted_is_one_line[more documents than anybody has]
     0.1 s  tests/end_to_end/test_canary_run.py::test_what_cannot_be_planted_is_one_line[more canaries than users]
     0.1 s  tests/audit/test_control.py::test_canaries_that_were_learned_pass_although_real_rows_were_not
     0.0 s  tests/end_to_end/test_canary_run.py::test_the_record_keeps_real_and_canary_users_apart
     0.0 s  tests/end_to_end/test_data_defenses.py::test_a_guarantee_says_that_it_takes_the_list_of_names_for_public[entities0-True]
     0.0 s  tests/end_to_end/test_canary_run.py::test_neither_record_nor_report_nor_plan_holds_a_canary_s_mark_text_or_source
     0.0 s  tests/end_to_end/test_data_defenses.py::test_a_guarantee_says_that_it_takes_the_list_of_names_for_public[entities1-False]
36 passed, 1 deselected in 137.24s (0:02:17)
